"""One run of the toy study: train one network with one loss, test it at π.

Stage: `ToyRun` → `ToyFigures`, a pure function.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import log_softmax
from torch import Tensor, nn

from ... import __version__
from ...likelihoods import start_at_prevalence
from ...prevalence import Prevalence
from ...sampling import StratifiedBatchSampler
from ...tensors import tensor_of
from ..engines import one_thread
from ..methods import EVIDENCE, METHODS
from .population import Population


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
        content = json.dumps([__version__, EVIDENCE, dataclasses.asdict(self)], sort_keys=True)
        return re.sub(r"[^\w.]+", "-", self.label) + f"-{hashlib.sha256(content.encode()).hexdigest()[:12]}.json"


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
