"""The toy study: each loss on populations with a known optimum, and under three kinds of sampling bias.

Stage: `ToyRun` → `ToyFigures`, a pure function; `ToyConfig` → runs, a JSON file each → `Results` and the files a reader opens.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import log_softmax
from torch import Tensor, nn

from ... import __version__
from ...atomic_files import write_whole
from ...likelihoods import start_at_prevalence
from ...prevalence import Prevalence
from ...sampling import StratifiedBatchSampler
from ...tensors import tensor_of
from ..config import unique_name
from ..engines import one_thread
from ..execute import check_folder
from ..methods import EVIDENCE, FULLY_LABELLED, METHODS, STARTS
from .biases import BiasConfig, BiasFigures, BiasRow, bias_rows, biases_csv, run_seed, save_biases
from .population import FiveRatings, Population, TwoGaussians
from .table import BOTH, START_NAMES, Results, ToyRow, constant_rows, to_csv, to_markdown

Progress = Callable[[int, int, str], None]

PICTURES = ("figures/biases.png", "figures/biases.svg")
FILES = ("results.json", "table.csv", "report.md", "biases.csv", *PICTURES)


@dataclass(frozen=True)
class Net:
    """A network and how it is trained: the same for every method, tuned for none.

    Attributes:
        name: for the table.
        hidden: units of the one hidden layer; 0 for a linear model.
        examples: training examples, all classes together.
        batch_size: a multiple of 2 and 5, so that every batch has equal classes.
        steps: minibatches.
        learning_rate: Adam's first; it falls to 0 as (1 − t/steps)².
    """

    name: str
    hidden: int
    examples: int
    batch_size: int
    steps: int
    learning_rate: float


@dataclass(frozen=True)
class ToyProblem:
    """A run without its method: methods that share a problem see the same examples in the same order."""

    population: Population
    net: Net
    seed: int
    test_examples: int


@dataclass(frozen=True)
class ToyRun:
    """One run: a problem, one of `METHODS` by its name, and one of its `STARTS`."""

    problem: ToyProblem
    method: str
    start: str = "population"

    @property
    def label(self) -> str:
        problem = self.problem
        return f"{problem.population.title}, {problem.net.name}, {self.method} from {self.start}, seed {problem.seed}"

    @property
    def file_name(self) -> str:
        """Return the name of its file: readable, and unique for everything that could change its figures."""
        return unique_name(self.label, [__version__, EVIDENCE, dataclasses.asdict(self)]) + ".json"


@dataclass(frozen=True)
class ToyFigures:
    """Figures of one trained network at π.

    Attributes:
        log_likelihood: `Σ_c π_c avg_{n: y_n=c} log p(c|x_n)` over the test examples.
        variance: its sampling variance, `Σ_c π_c² s_c² / n_c`.
        lost: the mean of `log p_true(c|x_n) − log p(c|x_n)`.
        auc: None for more than two classes.
        mean_prediction: of the last class, weighted to π.
    """

    log_likelihood: float
    variance: float
    lost: float
    auc: float | None
    mean_prediction: float


def run(config: ToyRun) -> ToyFigures:
    """Train and test a network; the same config gives the same figures."""
    corrected = METHODS[config.method].corrected
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.problem.seed)  # of the auxiliary network's weights, and of what it is trained on
        name = "plain" if corrected else config.method  # one network, corrected or not
        network = _trained(config.problem, name, config.start)
        return _test(network, config.problem, corrected)


@lru_cache(maxsize=1)
def _trained(problem: ToyProblem, name: str, start: str) -> nn.Module:
    population, net, method = problem.population, problem.net, METHODS[name]
    prevalence, likelihood = population.prevalence, population.likelihood
    x, y = _examples(population, net.examples // prevalence.num_classes, 2 * problem.seed)
    network, head = _network(population, net, problem.seed)
    start_at_prevalence(head, method.start(prevalence, start), likelihood)
    criterion = method.loss(prevalence, likelihood, method.marginal_for(head))
    optimiser = torch.optim.Adam(network.parameters(), lr=net.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimiser, net.steps, power=2)
    generator = torch.Generator().manual_seed(problem.seed)
    for batch in StratifiedBatchSampler(y, prevalence, net.batch_size, net.steps, generator):
        index = torch.tensor(batch)
        optimiser.zero_grad()
        criterion(network(x[index]), y[index]).backward()
        optimiser.step()
        schedule.step()
    return network


def _network(population: Population, net: Net, seed: int) -> tuple[nn.Module, nn.Linear]:
    """Return the network and its last layer."""
    outputs = population.likelihood.num_outputs
    assert outputs is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(net.hidden or population.features, outputs)
        return (nn.Sequential(nn.Linear(population.features, net.hidden), nn.ReLU(), head) if net.hidden else head), head


@torch.no_grad()
def _test(network: nn.Module, problem: ToyProblem, corrected: bool) -> ToyFigures:
    from sklearn.metrics import roc_auc_score

    population, prevalence = problem.population, problem.population.prevalence
    x, y = _examples(population, problem.test_examples // prevalence.num_classes, 2 * problem.seed + 1)
    log_probs, rows = population.likelihood.table(network(x)).double().numpy(), np.arange(len(y))
    if corrected:
        log_probs = log_softmax(log_probs + prevalence.log_weights, 1)
    own, true = (table[rows, y.numpy()] for table in (log_probs, population.log_probs(x.double().numpy())))
    log_likelihood, variance = _weighted(own, prevalence)
    return ToyFigures(
        log_likelihood=log_likelihood,
        variance=variance,
        lost=_weighted(true - own, prevalence)[0],
        auc=float(roc_auc_score(y, log_probs[:, 1] - log_probs[:, 0])) if prevalence.num_classes == 2 else None,
        mean_prediction=_weighted(np.exp(log_probs[:, -1]), prevalence)[0],
    )


def _weighted(values: Float64[np.ndarray, " n"], prevalence: Prevalence) -> tuple[float, float]:
    """Return the mean at π and its sampling variance, for values sorted by class, with equal numbers of each."""
    by_class = values.reshape(prevalence.num_classes, -1)
    weights = prevalence.population
    variance = (weights**2 * by_class.var(1, ddof=1)).sum() / by_class.shape[1]
    return float(weights @ by_class.mean(1)), float(variance)


@lru_cache(maxsize=4)
def _examples(population: Population, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = population.sample(per_class, seed)
    return tensor_of(x).float(), tensor_of(y)


# The grid.

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
        content = {"version": __version__, **dataclasses.asdict(self), "populations": populations}
        settings: dict[str, Any] = json.loads(json.dumps({**content, "methods": METHODS_AND_STARTS, "evidence": EVIDENCE}))
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
    runs, biases = config.runs(), config.biases
    figures: dict[ToyRun, ToyFigures] = {}
    of_biases: list[BiasFigures] = []
    total = len(runs) + biases.seeds
    for done, each in enumerate(runs, start=1):
        figures[each] = _kept(each, out / "runs")
        progress(done, total, each.label)
    for seed in range(biases.seeds):
        of_biases += run_seed(biases, seed)
        progress(len(runs) + seed + 1, total, f"sampling biases, seed {seed}")
    return _written(config, _rows(config, figures), bias_rows(biases, of_biases), out)


def _kept(config: ToyRun, folder: Path) -> ToyFigures:
    """Return the run's figures from its file; if it has none, run it and write one."""
    path = folder / config.file_name
    if not path.exists():
        found = run(config)
        content = {"config": dataclasses.asdict(config), "figures": [dataclasses.asdict(found)]}
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return found
    try:
        (figures,) = json.loads(path.read_text(encoding="utf-8"))["figures"]
        return ToyFigures(**figures)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"Expected the figures of one run in {path}, but it does not hold them: delete it.") from error


def _written(config: ToyConfig, rows: list[ToyRow], of_biases: list[BiasRow], out: Path) -> Results:
    """Write all of `FILES`; results.json is written last and marks them as complete."""
    results = Results(config.settings(), rows)
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
            for name, start in METHODS_AND_STARTS:
                found = [figures[ToyRun(problem, name, start)] for problem in problems]
                shown = START_NAMES[start] if METHODS[name].mix == "population" else BOTH
                rows.append(_row(found, population, (population.title, net.name, METHODS[name].title, shown)))
    return rows


def _row(runs: list[ToyFigures], population: Population, names: tuple[str, str, str, str]) -> ToyRow:
    by_seed = [each.log_likelihood for each in runs]
    aucs = [each.auc for each in runs if each.auc is not None]
    error = math.sqrt(math.fsum(each.variance for each in runs)) / len(runs)
    return ToyRow(
        *names,
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
