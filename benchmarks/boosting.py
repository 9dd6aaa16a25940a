"""Compare the boosting objectives with the same boosters corrected afterwards, at π = 0.01, and time them.

Three problems: ISLP Default, two Gaussians whose truth is known, and LIDC's nodules by their features (split by patient). Each
booster is trained on all rows and on as many of the common class as of the rare one, with rounds chosen by early stopping on
the expected log-likelihood at π; ten splits, the same for all. Differences are paired, against the built-in objective moved to
π in closed form, with 95 % intervals of Student's t over the splits. Writes boosting.md.

    OMP_NUM_THREADS=1 python benchmarks/boosting.py --docs
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from report import folder, table
from scipy import special, stats
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

import rightloss as rl
from rightloss.boosting import InformationGainObjective, WeightedObjective
from rightloss.lidc import binary_set, folds
from rightloss.study import TwoGaussians

POPULATION = 0.01
SEEDS = range(10)
LIBRARIES = ("LightGBM", "XGBoost")
BASELINE = "built-in, corrected"
# None is the library's own objective, started at log ρ
METHODS: dict[str, Callable[[rl.Prevalence], Any]] = {
    BASELINE: lambda prevalence: None,
    "information gain, κ = 1": InformationGainObjective,
    "information gain, κ = 0.1": lambda prevalence: InformationGainObjective(prevalence.with_evidence(0.1)),
    "as published (r = π, κ = 0)": lambda prevalence: InformationGainObjective(
        prevalence.with_evidence(0.0), prevalence.population
    ),
    "weighted": WeightedObjective,
}
ROUNDS, PATIENCE = 500, 20
LIGHTGBM = {"learning_rate": 0.05, "max_depth": 4, "num_threads": 1, "verbosity": -1, "metric": "none"}
XGBOOST = {"learning_rate": 0.05, "max_depth": 4, "nthread": 1, "verbosity": 0, "base_score": 0.5}
TIMED_ROWS, TIMED_ROUNDS = 50_000, 50


class Split(NamedTuple):
    """Rows to train and to test on."""

    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray


class Found(NamedTuple):
    """Expected log-likelihood at π and AUC on the test rows."""

    log_likelihood: float
    auc: float


def default(seed: int) -> Split:
    """Return ISLP Default, 10,000 people of whom 3.3 % default; half are test rows."""
    from ISLP import load_data

    data = load_data("Default")
    x = np.column_stack([data["student"] == "Yes", data["balance"], data["income"]]).astype(float)
    y = (data["default"] == "Yes").to_numpy().astype(int)
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    return Split(x[train], y[train], x[test], y[test])


def gaussians(seed: int) -> Split:
    """Return two Gaussians in five dimensions, 300 rows of the rare class and 2,700 of the other; 40,000 test rows."""
    population = TwoGaussians(POPULATION)
    x, y = population.sample(2700, seed)
    x_new, y_new = population.sample(20_000, 1000 + seed)
    return Split(x[:3000], y[:3000], x_new, y_new)


def nodules(seed: int) -> Split:
    """Return LIDC's nodules by their features, 24 % malignant; a third of the patients are test rows."""
    data = binary_set()
    train, test = folds(data.labels, data.patients, 3, seed=seed)[0]
    x, y = np.asarray(data.features), data.labels.numpy()
    return Split(x[train], y[train], x[test], y[test])


PROBLEMS: dict[str, Callable[[int], Split]] = {"ISLP Default": default, "two Gaussians": gaussians, "LIDC features": nodules}


def balanced(split: Split, seed: int) -> Split:
    """Return the split with as many training rows of the common class as of the rare one."""
    counts = np.bincount(split.y)
    draw = np.random.default_rng(seed)
    kept = np.concatenate([draw.choice(np.flatnonzero(split.y == k), counts.min(), replace=False) for k in (0, 1)])
    return Split(split.x[kept], split.y[kept], split.x_new, split.y_new)


def worth(split: Split, library: str, method: str, seed: int) -> Found:
    rows = train_test_split(np.arange(len(split.y)), test_size=0.2, stratify=split.y, random_state=seed)
    train, valid = ((split.x[part], split.y[part]) for part in map(np.sort, rows))
    prevalence = rl.Prevalence.from_labels(train[1], POPULATION)
    objective = METHODS[method](prevalence)
    mix = prevalence.sampling if objective is None else prevalence.population
    start, of_pi = (float(np.log(each[1] / each[0])) for each in (mix, prevalence.population))
    log_loss_at_pi = InformationGainObjective(prevalence).log_loss

    def metric(scores: np.ndarray, data: Any) -> Any:
        """Return the log-loss at π; with a library's own objective the scores are probabilities in the training mix."""
        scores = scores if objective is not None else special.logit(scores) - start + of_pi
        return log_loss_at_pi(scores, data)

    trees = (lightgbm_trees if library == "LightGBM" else xgboost_trees)(
        train, valid, start, objective, metric, split.x_new, seed
    )
    probs = special.expit(trees + of_pi)
    to_population = np.array([1 - POPULATION, POPULATION])[split.y_new] / np.bincount(split.y_new)[split.y_new]
    return Found(-log_loss(split.y_new, probs, sample_weight=to_population), roc_auc_score(split.y_new, probs))


def lightgbm_trees(
    train: tuple[np.ndarray, np.ndarray],
    valid: tuple[np.ndarray, np.ndarray],
    start: float,
    objective: Any,
    metric: Any,
    x_new: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Return the raw scores of the trees, without the start."""
    import lightgbm as lgb

    data = lgb.Dataset(*train, init_score=np.full(len(train[1]), start), params={"verbosity": -1})
    held = lgb.Dataset(*valid, init_score=np.full(len(valid[1]), start), reference=data)
    params = LIGHTGBM | {"objective": objective or "binary", "seed": seed}
    stop: list[Any] = [lgb.early_stopping(PATIENCE, verbose=False)]
    trees = lgb.train(params, data, ROUNDS, [held], feval=metric, callbacks=stop)
    return np.asarray(trees.predict(x_new, raw_score=True))


def xgboost_trees(
    train: tuple[np.ndarray, np.ndarray],
    valid: tuple[np.ndarray, np.ndarray],
    start: float,
    objective: Any,
    metric: Any,
    x_new: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Return the raw scores of the trees, without the start."""
    import xgboost as xgb

    data, held = (xgb.DMatrix(x, y, base_margin=np.full(len(y), start)) for x, y in (train, valid))
    params = XGBOOST | {"objective": "binary:logistic", "disable_default_eval_metric": 1, "seed": seed}
    options: dict[str, Any] = {"early_stopping_rounds": PATIENCE, "verbose_eval": False, "obj": objective}
    booster = xgb.train(params, data, ROUNDS, evals=[(held, "valid")], custom_metric=metric, **options)
    new = xgb.DMatrix(x_new, base_margin=np.zeros(len(x_new)))
    return booster[: booster.best_iteration + 1].predict(new, output_margin=True)


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Return mean and half width of the 95 % interval."""
    half = stats.t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
    return float(differences.mean()), float(half)


def rows_of(problem: str, library: str, rows: str, worse: list[str], better: list[str]) -> list[list[str]]:
    """Return the table's rows of one cell; names of comparisons that are decided go into `worse` and `better`."""
    found: dict[str, list[Found]] = {method: [] for method in METHODS}
    for seed in SEEDS:
        split = PROBLEMS[problem](seed)
        split = balanced(split, seed) if rows == "balanced" else split
        for method in METHODS:
            found[method].append(worth(split, library, method, seed))
    values = {method: np.array(each) for method, each in found.items()}
    lines = []
    for method, each in values.items():
        mean = each.mean(0)
        line = [problem, library, rows, method, f"{mean[0]:.4f}", "", f"{mean[1]:.4f}", ""]
        if method != BASELINE:
            for column, name in ((0, "log-likelihood"), (1, "AUC")):
                difference, half = interval((each - values[BASELINE])[:, column])
                line[5 + 2 * column] = f"{difference:+.4f} ± {half:.4f}"
                decided = worse if difference < -half else better if difference > half else None
                if decided is not None:
                    decided.append(f"{problem}, {library}, {rows}: {method}, {name} {difference:+.4f} ± {half:.4f}")
        lines.append(line)
    print(*(" | ".join(line) for line in lines), sep="\n", flush=True)
    return lines


def time_ratios() -> list[list[str]]:
    """Return the training times of the objectives against the built-in one, started where each belongs."""
    lines = []
    for classes, population in ((2, [0.99, 0.01]), (3, [0.9, 0.09, 0.01])):
        y = np.arange(TIMED_ROWS) % classes
        x = np.random.default_rng(0).normal(size=(TIMED_ROWS, 20)) + 0.3 * y[:, None]
        prevalence = rl.Prevalence(population)
        objectives: dict[str, Any] = {
            "information gain, κ = 1": InformationGainObjective(prevalence),
            "information gain, κ = 0.1": InformationGainObjective(prevalence.with_evidence(0.1)),
            "as published (r = π, κ = 0)": InformationGainObjective(prevalence.with_evidence(0.0), prevalence.population),
            "weighted": WeightedObjective(prevalence),
        }
        for library, train in (("LightGBM", lightgbm_run), ("XGBoost", xgboost_run)):
            runs = {name: train(x, y, np.log(population), objective) for name, objective in objectives.items()}
            runs["built-in"] = train(x, y, np.zeros(classes), None)
            seconds = cpu_seconds(runs)
            lines += [
                [library, str(classes), name, f"{seconds[name]:.2f} s", f"{seconds[name] / seconds['built-in']:.2f}"]
                for name in runs
            ]
    return lines


def cpu_seconds(runs: dict[str, Callable[[], object]], repeats: int = 3) -> dict[str, float]:
    """Return the median CPU time of each run, called in turn, after a first round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + repeats):
        for name, run in runs.items():
            before = time.process_time()
            run()
            times[name].append(time.process_time() - before)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def start_of(log_mix: np.ndarray, n: int) -> np.ndarray:
    return np.full(n, log_mix[1] - log_mix[0]) if len(log_mix) == 2 else np.tile(log_mix, (n, 1))


def lightgbm_run(x: np.ndarray, y: np.ndarray, start: np.ndarray, objective: Any) -> Callable[[], object]:
    import lightgbm as lgb

    several = {"num_class": len(start)} if len(start) > 2 else {}
    params = {"objective": objective or ("multiclass" if several else "binary"), "num_threads": 1, "verbosity": -1, **several}
    data = lgb.Dataset(x, y, init_score=start_of(start, len(y)), params={"verbosity": -1}).construct()
    return lambda: lgb.train(params, data, TIMED_ROUNDS)


def xgboost_run(x: np.ndarray, y: np.ndarray, start: np.ndarray, objective: Any) -> Callable[[], object]:
    import xgboost as xgb

    several = {"num_class": len(start)} if len(start) > 2 else {}
    params = {"objective": "multi:softprob" if several else "binary:logistic", "nthread": 1, "base_score": 0.5, **several}
    data = xgb.DMatrix(x, y, base_margin=start_of(start, len(y)))
    return lambda: xgb.train(params, data, TIMED_ROUNDS, obj=objective)


def listed(title: str, cells: list[str]) -> str:
    return f"{title}\n\n" + ("\n".join(f"- {cell}" for cell in cells) if cells else "- none") + "\n\n"


def main() -> None:
    out = folder() / "boosting.md"
    worse: list[str] = []
    better: list[str] = []
    lines = [
        line
        for problem in PROBLEMS
        for library in LIBRARIES
        for rows in ("balanced", "all rows")
        for line in rows_of(problem, library, rows, worse, better)
    ]
    header = ["problem", "library", "trained on", "method", "log-lik. at π", "against built-in", "AUC", "against built-in"]
    always = POPULATION * np.log(POPULATION) + (1 - POPULATION) * np.log1p(-POPULATION)
    text = "Made by `OMP_NUM_THREADS=1 python benchmarks/boosting.py --docs`.\n\n"
    text += f"π = {POPULATION}, {len(SEEDS)} splits; always answering π has a log-likelihood of {always:.4f}. Differences are "
    text += "paired, with 95 % intervals over the splits, which share rows: read them as a guide.\n\n"
    text += table(header, lines) + "\n"
    text += listed("Worse than the built-in objective corrected afterwards (the interval leaves 0 out):", worse)
    text += listed("Better:", better)
    below = [f"{p}, {lib}, {rows}: {method} {value}" for p, lib, rows, method, value, *_ in lines if float(value) < always]
    text += listed("Worse than always answering π:", below)
    text += f"Training time of {TIMED_ROUNDS} rounds on {TIMED_ROWS:,} × 20 numbers, one thread, medians:\n\n"
    text += table(["library", "classes", "objective", "CPU time", "ratio"], time_ratios())
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
