"""Which way to probabilities at a prevalence, around a fitted classifier, is best on thirteen real tables, all tuned equally?

For each set and each of ten splits, three bases (logistic regression, LightGBM, random forest) are trained on the rows as they
are, with `class_weight="balanced"`, and on rows undersampled (logistic regression also on oversampled rows and on SMOTE's). The
settings of each are chosen by inner cross-validation. Each model is then moved to the set's own prevalence and to 10⁻³ by every
correction; the test rows are weighted by class to that prevalence. All of it takes an hour of a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline
from imblearn.under_sampling import RandomUnderSampler
from lightgbm import LGBMClassifier
from scipy.special import log_expit, logit
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GroupShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    cross_val_predict,
)
from sklearn.preprocessing import StandardScaler

from rightloss.metrics import evaluate
from rightloss.sklearn import InformationGainClassifier, PrevalenceCorrectedClassifier

from .data_sets import TWO_CLASSES, DataSet, describe, load
from .engine import Comparison
from .pages import axes, half_width, paired, table
from .remembered_fits import Clock, remembered_fits
from .streams import at_share

SPLITS, FOLDS, RARE = range(2, 12), 5, 1e-3  # splits 0 and 1 were looked at while "auto" was made
MOST_TRAINED, MOST_TESTED, MOST_UNLABELLED = 4_000, 12_000, 5_000
COSTS = (0.003, 0.1, 3.0)  # C of logistic regression
SIZES = ((4, 40), (4, 120), (15, 40), (15, 120))  # leaves and rounds of boosting
LEAVES, TREES = (1, 5, 20), 60  # fewest rows in a leaf of a forest
TRAININGS = {
    "logistic": ("plain", "balanced", "undersampled", "oversampled", "SMOTE"),
    "LightGBM": ("plain", "balanced", "undersampled"),
    "forest": ("plain", "balanced", "undersampled"),
}
SAMPLERS = {"undersampled": RandomUnderSampler, "oversampled": RandomOverSampler, "SMOTE": SMOTE}
FIGURES = ["log_likelihood", "auc", "slope", "intercept", "ratio"]
Moved = tuple[str, float, np.ndarray, float, str]  # correction, π, log-odds of the test rows, seconds, what auto chose


class Cell(NamedTuple):
    set: str
    draw: int


def cells() -> Iterator[Cell]:
    yield from (Cell(name, split) for split in SPLITS for name in TWO_CLASSES)


@dataclass(frozen=True)
class Split:
    """Training and test rows, standardised by the training rows, and the folds for everything inside the training rows."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    folds: list[tuple[np.ndarray, np.ndarray]]
    natural: float

    def unlabelled(self, population: float, seed: int) -> np.ndarray:
        """Return test rows without labels in which positives come at the population's frequency."""
        random = np.random.default_rng(seed)
        rows = np.concatenate([random.permutation(np.flatnonzero(self.y_test == k)) for k in (1, 0)])
        return self.x_test[at_share(self.y_test, rows, population, MOST_UNLABELLED)]


def split_of(data: DataSet, seed: int) -> Split:
    """Return split `seed`: two thirds of the rows for training, at most `MOST_TRAINED`; groups stay together."""
    size = min(MOST_TRAINED, 2 * len(data.y) // 3)
    rest = min(MOST_TESTED, len(data.y) - size)
    if data.groups is None:
        train, test = next(StratifiedShuffleSplit(1, train_size=size, test_size=rest, random_state=seed).split(data.x, data.y))
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(data.x[train], data.y[train])
    else:
        train, test = next(GroupShuffleSplit(1, train_size=2 / 3, random_state=seed).split(data.x, data.y, data.groups))
        by_group = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
        folds = by_group.split(data.x[train], data.y[train], data.groups[train])
    x, x_test = standardised(data.x[train], data.x[test])
    return Split(x, data.y[train], x_test, data.y[test], list(folds), float(data.y.mean()))


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clip numbers at their 0.5 and 99.5 percentiles, fill missing values by the median and flag them, scale to unit spread."""
    low, high = np.nanpercentile(train, [0.5, 99.5], axis=0)
    numeric = np.array([len(np.unique(column)) > 10 for column in train.T])
    first, second = (np.clip(rows, np.where(numeric, low, -np.inf), np.where(numeric, high, np.inf)) for rows in (train, test))
    steps = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), VarianceThreshold(), StandardScaler())
    return steps.fit_transform(first), steps.transform(second)


def candidates(base: str, training: str) -> list[Any]:
    """Return the settings to choose from, as unfitted classifiers."""
    weight = "balanced" if training == "balanced" else None
    options: dict[str, Any] = {"class_weight": weight, "n_jobs": 1, "random_state": 0}
    models: list[Any]
    if base == "logistic":
        models = [LogisticRegression(C=cost, class_weight=weight, max_iter=2_000) for cost in COSTS]
    elif base == "LightGBM":
        models = [LGBMClassifier(num_leaves=each, n_estimators=rounds, verbose=-1, **options) for each, rounds in SIZES]
    else:
        models = [RandomForestClassifier(TREES, min_samples_leaf=rows, **options) for rows in LEAVES]
    return [make_pipeline(SAMPLERS[training](random_state=0), each) for each in models] if training in SAMPLERS else models


def log_odds(probability: np.ndarray, rows: int) -> np.ndarray:
    """Return the log-odds of class 1, kept finite: a forest of `rows` cannot know a chance below 1/(2 (rows + 1))."""
    floor = 1 / (2 * (rows + 1))
    p = np.clip(probability, floor, 1 - floor)
    return np.log(p) - np.log1p(-p)


def tuned(models: Sequence[Any], split: Split, shift: float) -> Any:
    """Return the candidate with the best out-of-fold log-likelihood, its log-odds moved by `shift` to the rows' own mix."""

    def score(model: Any) -> float:
        out_of_fold = cross_val_predict(model, split.x, split.y, cv=split.folds, method="predict_proba")[:, 1]
        z = log_odds(out_of_fold, len(split.y)) + shift
        return float(log_expit(np.where(split.y == 1, z, -z)).mean())

    return max(models, key=score)


def corrected(model: Any, split: Split, seed: int, shift: float, clock: Clock) -> Iterator[Moved]:
    """Yield the test predictions of a tuned, unfitted model after every correction, at both populations."""
    own, rows = logit(float(split.y.mean())), len(split.y)
    start = clock.now()
    plain = clone(model).fit(split.x, split.y)
    seconds = clock.now() - start
    as_is = log_odds(plain.predict_proba(split.x_test)[:, 1], rows)
    for population in (split.natural, RARE):
        yield "as is", population, as_is, seconds, ""
    for method in ("sigmoid", "isotonic"):
        start = clock.now()
        calibrated = CalibratedClassifierCV(clone(model), method=method, cv=split.folds, ensemble=False).fit(split.x, split.y)
        seconds = clock.now() - start
        z = log_odds(calibrated.predict_proba(split.x_test)[:, 1], rows)
        for population in (split.natural, RARE):
            yield f"{method} as is", population, z, seconds, ""
            yield method, population, z + logit(population) - own, seconds, ""
    for population in (split.natural, RARE):
        for method in ("closed_form", "affine", "beta", "mean_matching", "auto"):
            unlabelled = split.unlabelled(population, seed) if method == "mean_matching" else None
            start = clock.now()
            ours = PrevalenceCorrectedClassifier(clone(model), population, method=method, cv=split.folds)
            ours.fit(split.x, split.y, X_unlabelled=unlabelled)
            seconds = clock.now() - start
            chosen = ours.method_ if method == "auto" else ""
            yield method.replace("_", " "), population, _log_odds_of(ours, split), seconds, chosen


def of_ours(split: Split, clock: Clock) -> Iterator[Moved]:
    """Yield the same of the linear classifier that is trained at a population; one fit serves both."""
    best = tuned([InformationGainClassifier(split.natural, C=cost, max_iter=2_000) for cost in COSTS], split, 0.0)
    start = clock.now()
    fitted = clone(best).fit(split.x, split.y)
    seconds = clock.now() - start
    for population in (split.natural, RARE):
        yield OURS[1], population, _log_odds_of(fitted.set_population(population), split), seconds, ""


def _log_odds_of(fitted: Any, split: Split) -> np.ndarray:
    log_probs = np.asarray(fitted.predict_log_proba(split.x_test))
    z: np.ndarray = log_probs[:, 1] - log_probs[:, 0]
    assert np.isfinite(z).all()
    return z


def figures(z: np.ndarray, y: np.ndarray, population: float) -> dict[str, float]:
    """Return log-likelihood, AUC, and the calibration slope and intercept (at slope 1), at the population."""
    found = evaluate(np.stack([log_expit(-z), log_expit(z)], 1), y, population, intervals=None)
    names = {"log_likelihood": "expected_log_likelihood", "slope": "calibration_slope", "intercept": "calibration_intercept"}
    return {name: float(f"{found[names.get(name, name)].value:.6g}") for name in FIGURES[:4]}


def run(cell: Cell) -> list[dict[str, Any]]:
    """Train and score everything on one split of one set."""
    split, rows = split_of(load(cell.set), cell.draw), list[dict[str, Any]]()
    counts = {"train_positives": int(split.y.sum()), "test_positives": int(split.y_test.sum())}

    def add(base: str, training: str, found: Moved, base_seconds: float) -> None:
        correction, population, z, seconds, chosen = found
        what = {"population": population, "base": base, "training": training, "correction": correction, "chosen": chosen}
        ratio = seconds / base_seconds if base_seconds else np.nan
        rows.append(what | figures(z, split.y_test, population) | {"ratio": ratio, "rare": population == RARE} | counts)

    with remembered_fits(LogisticRegression, LGBMClassifier, RandomForestClassifier) as clock:
        alone: dict[tuple[str, str], float] = {}  # seconds of one fit
        for base, trainings in TRAININGS.items():
            for training in trainings:
                shift = 0.0 if training == "plain" else logit(float(split.y.mean()))  # from equal classes to the rows' own mix
                model = tuned(candidates(base, training), split, shift)
                for found in corrected(model, split, cell.draw, shift, clock):
                    add(base, training, found, alone.setdefault((base, training), found[3]))
        for found in of_ours(split, clock):
            add("logistic", "ours", found, alone["logistic", "plain"])
    for population in (split.natural, RARE):
        add("none", "", (GUESS, population, np.full(len(split.y_test), logit(population)), 0.0, ""), 0.0)
    return rows


# --- what is stored, and the page ---

OURS, GUESS = ("auto", "InformationGainClassifier"), "always π"
RIVALS = ("closed form", "affine", "beta", "mean matching", "sigmoid", "isotonic")
LABELLED = tuple(name for name in RIVALS if name != "mean matching")
MODEL = ["base", "training"]


def limits(a: pd.Series, b: pd.Series) -> tuple[float, float, float]:
    """Return the mean of a − b over the splits, and its 95 % limits by Student's t."""
    difference = (a - b).dropna()
    if len(difference) < 2:
        return float(difference.mean()), float("-inf"), float("inf")
    mean, error, count = paired(difference)
    return mean, mean - half_width(error, count), mean + half_width(error, count)


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell and method: means over splits, and paired differences to always answering π and to the best.

    A cell is a set, a prevalence and a trained model (base and training). `best` is the correction with the highest mean
    log-likelihood there, known only afterwards.
    """
    found = []
    for (name, rare), cell in rows.sort_values(["set", "draw"], kind="stable").groupby(["set", "rare"], sort=False):
        by_split = cell.pivot_table("log_likelihood", "draw", [*MODEL, "correction"])
        guess = by_split["none", "", GUESS]
        means = cell.groupby([*MODEL, "correction"], sort=False)
        chosen = means["chosen"].agg(lambda values: ", ".join(f"{k} {n}" for k, n in values.value_counts().items() if k))
        shared = {"set": name, "rare": rare, "population": cell["population"].iloc[0], "entropy": -float(guess.mean())}
        shared |= {key: cell[key].mean().round() for key in ("train_positives", "test_positives")}
        for (base, training, correction), values in means[FIGURES].mean().iterrows():
            own = by_split[base, training, correction]
            row = shared | {"base": base, "training": training, "correction": correction} | dict(values)
            row["chosen"] = chosen[base, training, correction]
            row |= dict(zip(("over_guess", "over_guess_low", "over_guess_high"), limits(own, guess), strict=True))
            for label, names in (("best", RIVALS), ("labelled", LABELLED)):
                rivals = [key for key in by_split if key[:2] == (base, training) and key[2] in names]
                if rivals:
                    best = max(rivals, key=lambda key: by_split[key].mean())
                    to = (f"to_{label}", f"to_{label}_low", f"to_{label}_high")
                    row |= {label: best[2]} | dict(zip(to, limits(own, by_split[best]), strict=True))
            found.append(row)
    return pd.DataFrame(found)


def share(values: pd.Series) -> str:
    return f"{int(values.sum())} of {len(values)} ({100 * values.mean():.0f} %)"


def interval(mean: float, low: float, high: float, digits: int = 5) -> str:
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def verdicts(cells: pd.DataFrame) -> str:
    """Return the two verdicts, with every cell that misses them."""
    lines, at = [], "{0[set]} at {0[population]:.3g}".format
    for name in OURS:
        own = cells[cells["correction"] == name]
        worse = own["over_guess_high"] < 0
        lines.append(f"- **{name}** is worse than always answering π, beyond noise, in {share(worse)} cells.")
        for _, row in own[worse].iterrows():
            over = interval(row["over_guess"], row["over_guess_low"], row["over_guess_high"])
            lines.append(f"    - {at(row)}, {row['base']} {row['training']}: {over}")
    own = cells[cells["correction"] == "auto"]
    missed, labelled = own[own["to_best_high"] < 0], share(own["to_labelled_high"] >= 0)
    lines.append(f"- **auto** is within noise of the best correction in {share(own['to_best_high'] >= 0)} cells.")
    lines.append(f"- Without mean matching, which needs unlabelled rows of the population, in {labelled}.")
    if len(missed):
        header = ["cell", "model", "auto chose", "best", "auto − best, nats", "% of always answering π"]
        rows = [
            [at(row), f"{row['base']} {row['training']}", row["chosen"], row["best"],
             interval(row["to_best"], row["to_best_low"], row["to_best_high"]), f"{100 * row['to_best'] / row['entropy']:+.2f}"]
            for _, row in missed.iterrows()
        ]  # fmt: skip
        lines += ["", "Where auto is not within noise of the best:", "", table(header, rows) + "\n"]
    return "\n".join(lines)


def head_to_head(cells: pd.DataFrame) -> str:
    """Return a row per correction, over all cells."""
    rows = []
    for rare, words in ((False, "natural"), (True, "0.001")):
        for name in ("as is", "sigmoid as is", "isotonic as is", *RIVALS, "auto"):
            own = cells[(cells["correction"] == name) & (cells["rare"] == rare)]
            regret = -100 * own["to_best"] / own["entropy"]
            rows.append(
                [words, f"**{name}**" if name == "auto" else name, f"{100 * (own['to_best_high'] >= 0).mean():.0f} %",
                 f"{regret.mean():.2f}", f"{regret.max():.1f}", str(int((own["over_guess_high"] < 0).sum())),
                 f"{(own['slope'] - 1).abs().median():.2f}", f"{own['intercept'].abs().median():.2f}",
                 f"{own['ratio'].median():.1f}"]
            )  # fmt: skip
    header = ["π", "correction", "within noise of the best", "mean regret, %", "worst regret, %", "cells below always π",
              "median abs. slope − 1", "median abs. intercept", "fit time / one fit"]  # fmt: skip
    return table(header, rows)


def by_model(cells: pd.DataFrame) -> str:
    """Return the mean regret of each correction by model, at both prevalences."""
    rows, names = [], [*RIVALS, "auto"]
    for (base, training), part in cells[cells["correction"].isin(names)].groupby(MODEL, sort=False):
        for rare, words in ((False, "natural"), (True, "0.001")):
            own = part[part["rare"] == rare].assign(regret=lambda each: -100 * each["to_best"] / each["entropy"])
            mean = own.groupby("correction")["regret"].mean()
            within = (own.loc[own["correction"] == "auto", "to_best_high"] >= 0).mean()
            rows.append([f"{base}, {training}", words, *(f"{mean[name]:.2f}" for name in names), f"{100 * within:.0f} %"])
    return table(["model", "π", *RIVALS, "**auto**", "auto within noise"], rows)


def by_set(cells: pd.DataFrame) -> str:
    """Return the expected log-likelihood by set: doing nothing, auto around the plain models, and ours."""
    rows = []
    for (name, _), cell in cells.groupby(["set", "rare"], sort=False):
        value, first = cell.set_index([*MODEL, "correction"])["log_likelihood"], cell.iloc[0]
        top = cell.loc[cell["log_likelihood"].idxmax()]
        plain = [f"{value[base, 'plain', what]:.5f}" for what in ("as is", "auto") for base in TRAININGS]
        best = f"{top['log_likelihood']:.5f} {top['base']} {top['training']}, {top['correction']}"
        counts = [f"{first['train_positives']:.0f}", f"{first['test_positives']:.0f}"]
        rows.append([name, f"{first['population']:.3g}", *counts, f"{value['none', '', GUESS]:.5f}", *plain,
                     f"{value['logistic', 'ours', OURS[1]]:.5f}", best])  # fmt: skip
    header = ["set", "π", "positives trained", "tested", GUESS, "do nothing: logistic", "LightGBM", "forest",
              "auto: logistic", "LightGBM", "forest", "InformationGain", "best of all"]  # fmt: skip
    return table(header, rows)


def against_nothing(rows: pd.DataFrame) -> str:
    """Return paired differences of ours to training on all rows and doing nothing, by set."""
    pairs = {f"auto, {base}": ((base, "plain", "auto"), (base, "plain", "as is")) for base in TRAININGS}
    pairs["InformationGain − logistic"] = ("logistic", "ours", OURS[1]), ("logistic", "plain", "as is")
    lines = []
    for (name, _), cell in rows.sort_values("set", kind="stable").groupby(["set", "rare"], sort=False):
        by_split = cell.pivot_table("log_likelihood", "draw", [*MODEL, "correction"])
        differences = [interval(*limits(by_split[a], by_split[b]), digits=4) for a, b in pairs.values()]
        lines.append([name, f"{cell['population'].iloc[0]:.3g}", *differences])
    return table(["set", "π", *pairs], lines)


def reduced(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return every cell and method, where `±` is half the width of a 95 % interval, and the page's pieces."""
    cells = compared(rows)
    small = cells.assign(**{f"{to} ±": (cells[f"{to}_high"] - cells[f"{to}_low"]) / 2 for to in ("over_guess", "to_best")})
    kept = ["set", "population", *MODEL, "correction", *FIGURES, "over_guess", "over_guess ±", "to_best", "to_best ±", "chosen"]
    header = ["set", "rows", "columns", "positives", "share", "positive", "source and licence"]
    sets = describe(name for name in TWO_CLASSES if name in set(rows["set"]))
    pieces = {
        "facts": f"{rows['set'].nunique()} sets × 2 prevalences × {rows['draw'].nunique()} splits",
        "verdicts": verdicts(cells), "head_to_head": head_to_head(cells), "by_model": by_model(cells),
        "by_set": by_set(cells), "nothing": against_nothing(rows),
        "sets": table(header, [[name, *sizes_of(name), *words] for name, *words in sets]),
    }  # fmt: skip
    return small[kept], pieces


def sizes_of(name: str) -> list[str]:
    """Return rows, columns, positives and their share."""
    data = load(name)
    positives = int(data.y.sum())
    return [f"{len(data.y):,}", str(data.x.shape[1]), f"{positives:,}", f"{100 * positives / len(data.y):.2g} %"]


def draw(rows: pd.DataFrame) -> Any:
    """Draw the skill against always answering π by set, with intervals over the splits."""
    series = {
        "do nothing (LightGBM)": (("LightGBM", "plain", "as is"), "#999999", "x"),
        "isotonic (LightGBM balanced)": (("LightGBM", "balanced", "isotonic"), "#e69f00", "s"),
        "closed form (forest balanced)": (("forest", "balanced", "closed form"), "#cc79a7", "v"),
        "auto (forest balanced)": (("forest", "balanced", "auto"), "#882255", "^"),
        "auto (LightGBM balanced)": (("LightGBM", "balanced", "auto"), "#0072b2", "o"),
        OURS[1]: (("logistic", "ours", OURS[1]), "#009e73", "D"),
    }
    lowest, names = -40.0, list(dict.fromkeys(rows["set"]))
    figure, panels = axes(1, 2, (11, 0.62 * len(names) + 1.6), 110, sharey=True)
    for axis, rare in zip(panels, (False, True), strict=True):
        for place, name in enumerate(names):
            cell = rows[(rows["set"] == name) & ((rows["population"] == RARE) == rare)].set_index([*MODEL, "correction"])
            guess = -float(cell.loc[("none", "", GUESS), "log_likelihood"])
            for order, (label, (key, colour, marker)) in enumerate(series.items()):
                mean, half = (100 * float(each) / guess for each in cell.loc[key, ["over_guess", "over_guess ±"]])
                y = place + 0.12 * (order - 2.5)
                if mean < lowest:
                    axis.plot(lowest, y, marker="<", color=colour, ms=5)
                    axis.annotate(f"{mean:.0f}", (lowest, y), (5, -3), textcoords="offset points", fontsize=6.5, color=colour)
                else:
                    axis.plot([max(mean - half, lowest), mean + half], [y, y], color=colour, lw=1.2)
                    axis.plot(mean, y, marker=marker, color=colour, ms=4.5, ls="")
                if place == 0:
                    axis.plot([], [], marker=marker, color=colour, ls="", ms=5, label=label)
        axis.axvline(0, color="black", lw=0.8)
        axis.set(xlim=(lowest - 3, 103), title="at a prevalence of 0.001" if rare else "at the set's own prevalence")
        axis.set_xlabel("log-likelihood above always answering π, % of what is possible")
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


COMPARISONS = (Comparison("corrections", cells, run, draw=draw, reduced=reduced),)
