"""The toy study: each loss on populations with a known optimum, and under three kinds of sampling bias.

Stage: `ToyConfig` → runs, each kept as one JSON file → `Results` and the files a reader opens.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from ... import __version__
from ...atomic_files import write_whole
from ..execute import check_folder
from ..methods import EVIDENCE, FULLY_LABELLED, METHODS, STARTS
from .biases import BiasConfig, BiasFigures, BiasRun, bias_rows, biases_csv, run_seed, save_biases
from .population import FiveRatings, Population, TwoGaussians
from .runs import Net, ToyFigures, ToyProblem, ToyRun, run
from .table import BOTH, START_NAMES, Results, ToyRow, constant_rows, to_csv, to_markdown

Progress = Callable[[int, int, str], None]

Config = TypeVar("Config", ToyRun, BiasRun)
Found = TypeVar("Found", ToyFigures, BiasFigures)
PICTURES = ("figures/biases.png", "figures/biases.svg")
FILES = ("results.json", "table.csv", "report.md", "biases.csv", *PICTURES)

# Can express the truth: with this many examples only the loss can keep it from the best possible.
LINEAR = Net("linear", hidden=0, examples=100_000, batch_size=1_000, steps=400, learning_rate=0.3)
# Can overfit, and has few enough examples to do so.
MLP = Net("MLP", hidden=32, examples=2_000, batch_size=250, steps=300, learning_rate=0.01)
# Cross-entropy starts at the mix of its minibatches, in which classes are equal: its two starts coincide.
METHODS_AND_STARTS = [
    (name, start) for name in FULLY_LABELLED for start in (STARTS if METHODS[name].mix == "population" else STARTS[:1])
]


@dataclass(frozen=True)
class ToyConfig:
    """The toy study.

    Attributes:
        seeds: each has its own training and test examples, first weights and minibatches.
        positives: the prevalences of the population of two classes.
        nets: what is trained.
        test_examples: per seed, all classes together and equal; figures are weighted to π.
        biases: the simulation of the three kinds of sampling bias, with seeds of its own.

    Examples:
        >>> from rightloss.study import ToyConfig
        >>> config = ToyConfig(seeds=2)
        >>> len(config.runs()), config.runs()[0].label
        (224, '0.3, linear, information-gain from population, seed 0')
    """

    seeds: int = 5
    positives: tuple[float, ...] = (0.3, 0.05, 0.001)
    nets: tuple[Net, ...] = (LINEAR, MLP)
    test_examples: int = 100_000
    biases: BiasConfig = field(default_factory=BiasConfig)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"Expected at least 1 seed, but got {self.seeds}: each seed is one repetition; 5 is the default.")

    def populations(self) -> list[Population]:
        return [*(TwoGaussians(positive) for positive in self.positives), FiveRatings()]

    def runs(self) -> list[ToyRun]:
        """Return every run, in an order that lets neighbours share examples."""
        return [
            ToyRun(ToyProblem(population, net, seed, self.test_examples), method, start)
            for population in self.populations()
            for seed in range(self.seeds)
            for net in self.nets
            for method, start in METHODS_AND_STARTS
        ]

    def settings(self) -> dict[str, Any]:
        """Return the settings in `results.json`: everything that could change a figure."""
        populations = [dataclasses.asdict(population) for population in self.populations()]
        content = {
            "version": __version__,
            **dataclasses.asdict(self),
            "populations": populations,
            "methods": METHODS_AND_STARTS,
        }
        content["evidence"] = EVIDENCE
        settings: dict[str, Any] = json.loads(json.dumps(content))
        return settings


def run_toy(config: ToyConfig, out: Path, progress: Progress = lambda done, total, label: None) -> Results:
    """Run what is missing in `out`, write the tables, and return the results; do nothing if everything is there.

    Args:
        config: what to run.
        out: a folder for `FILES` and `runs/`, created if needed.
        progress: called after each run with (runs done, runs in all, what was run).

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import ToyConfig, run_toy
        >>> config = ToyConfig(seeds=2, positives=(0.3,))
        >>> len(config.runs())
        112
        >>> results = run_toy(config, Path("results/toy"))  # doctest: +SKIP
    """
    check_folder(out)
    finished = _finished(out, config)
    if finished is not None:
        return finished
    import matplotlib.figure  # noqa: F401  a missing package is reported before anything is run
    import sklearn.metrics  # noqa: F401

    for folder in ("runs", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    runs, of_biases, figures, found = config.runs(), config.biases.runs(), {}, []
    for done, each in enumerate(runs, start=1):
        figures[each] = _kept(each, lambda config: [run(config)], ToyFigures, out / "runs")[0]
        progress(done, len(runs) + len(of_biases), each.label)
    for done, every in enumerate(of_biases, start=len(runs) + 1):
        found += _kept(every, run_seed, BiasFigures, out / "runs")
        progress(done, len(runs) + len(of_biases), every.label)
    return _written(config, _rows(config, figures), found, out)


def _kept(config: Config, work: Callable[[Config], list[Found]], kind: type[Found], folder: Path) -> list[Found]:
    """Return the run's figures from its file; if it has none, run it and write one."""
    path = folder / config.file_name
    if not path.exists():
        found = work(config)
        content = {"config": dataclasses.asdict(config), "figures": [dataclasses.asdict(each) for each in found]}
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return found
    try:
        return [kind(**each) for each in json.loads(path.read_text(encoding="utf-8"))["figures"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"Expected the figures of one run in {path}, but it does not hold them: delete it.") from error


def _written(config: ToyConfig, rows: list[ToyRow], found: list[BiasFigures], out: Path) -> Results:
    """Write all of `FILES`; results.json is written last and marks them as complete."""
    results = Results(config.settings(), rows)
    of_biases = bias_rows(config.biases, found)
    write_whole(out / "biases.csv", biases_csv(of_biases))
    save_biases(of_biases, config.biases, tuple(out / name for name in PICTURES))
    write_whole(out / "table.csv", to_csv(results))
    write_whole(out / "report.md", to_markdown(results))
    write_whole(out / "results.json", results.to_json())
    return results


def _finished(out: Path, config: ToyConfig) -> Results | None:
    """Return the results in `out` if they have the same settings and all files are there, else None."""
    if not (out / "results.json").exists():
        return None
    results = Results.read(out / "results.json")
    complete = all((out / name).exists() for name in FILES)
    return results if complete and results.settings == config.settings() else None


def _rows(config: ToyConfig, figures: dict[ToyRun, ToyFigures]) -> list[ToyRow]:
    """Return a row for each population, network, method and start, over its seeds."""
    rows = []
    for population in config.populations():
        rows += constant_rows(population)
        for net in config.nets:
            problems = [ToyProblem(population, net, seed, config.test_examples) for seed in range(config.seeds)]
            for method, start in METHODS_AND_STARTS:
                name = START_NAMES[start] if METHODS[method].mix == "population" else BOTH
                found = [figures[ToyRun(problem, method, start)] for problem in problems]
                rows.append(_row(found, population, net.name, METHODS[method].title, name))
    return rows


def _row(runs: list[ToyFigures], population: Population, model: str, method: str, start: str) -> ToyRow:
    by_seed = [each.log_likelihood for each in runs]
    aucs = [each.auc for each in runs if each.auc is not None]
    error = math.sqrt(math.fsum(each.variance for each in runs)) / len(runs)
    return ToyRow(
        prevalence=population.title,
        model=model,
        method=method,
        start=start,
        log_likelihood=fmean(by_seed),
        standard_error=error,
        from_best=(fmean(by_seed) - population.best_log_likelihood) / error,
        spread=stdev(by_seed) if len(runs) > 1 else None,
        lost=fmean(each.lost for each in runs),
        auc=fmean(aucs) if aucs else None,
        mean_prediction=fmean(each.mean_prediction for each in runs),
        log_likelihood_by_seed=by_seed,
        auc_by_seed=aucs,
    )
