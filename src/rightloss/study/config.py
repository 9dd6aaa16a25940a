"""What a study runs: the grid, frozen, and the runs and groups that it makes.

Stage: `StudyConfig` → `RunConfig`s → `Group`s of runs that share data, fold, seed and minibatches.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from .methods import EVIDENCE, METHODS

TASKS = ("binary", "rating", "balanced")
IMAGE_NETS = ("convnet", "inception", "fully-convolutional", "gated")
NETS = (*IMAGE_NETS, "both", "metadata", "mlp")  # image and metadata; metadata's block alone; features alone
LIKELIHOODS = ("categorical", "onion-peeling", "stick-breaking", "cumulative-logit")
MARGINALS = ("own", "batch", "classwise", "running", "auxiliary")
INFERENCES = ("map", "ensemble", "mc-dropout", "laplace", "variational", "sghmc")
OF_TABLES = INFERENCES[3:]  # for nets without images: each takes many passes over the data
MINIBATCHES = ("rebalanced", "raw")
MOST_SEEDS = 1000
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
CONTOURS = "contours"


@dataclass(frozen=True)
class Training:
    """How every net is trained, whatever its loss. What is chosen is chosen on the validation part, by one rule for all.

    Attributes:
        steps: minibatches.
        batch_size: nodules in each.
        views: of a nodule in training, drawn anew each time; a multiple of 3.
        test_views: of a nodule in validation and test, the same each time.
        learning_rates: candidates; Adam's first step size, which falls to 0 as a half cosine.
        checkpoints: how often a net is looked at on the validation part, at even distances; the best look is kept.
        weight_decay: AdamW's.
        averaging: decay of the running mean of the weights, which is what predicts.
        small: the nets' variants for CPUs.
        members: nets of an ensemble, and masks of MC dropout.
        prior_scales: candidates for the inferences that have a prior in the place of early stopping.
        precision: of weights and arithmetic, in Lightning Fabric's words.
    """

    steps: int = 300
    batch_size: int = 32
    views: int = 3
    test_views: int = 9
    learning_rates: tuple[float, ...] = (1e-3,)
    checkpoints: int = 10
    weight_decay: float = 1e-4
    averaging: float = 0.98
    small: bool = True
    members: int = 5
    prior_scales: tuple[float, ...] = (0.3, 1.0)
    precision: str = "32-true"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "views", "test_views", "checkpoints", "members"):
            _check_count(getattr(self, name), name)
        for name in ("views", "test_views"):
            if getattr(self, name) % 3:
                raise ValueError(f"Expected `{name}` to be a multiple of 3, but got {getattr(self, name)}: they are triplets.")
        if self.checkpoints > self.steps:
            raise ValueError(
                f"Expected no more checkpoints than steps, but got {self.checkpoints} and {self.steps}: look less often."
            )
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"Expected `weight_decay` from 0 up, but got {self.weight_decay}: 0 for none.")
        if self.precision not in PRECISIONS:
            raise ValueError(f"Expected a precision, but got {self.precision!r}: choose among {', '.join(PRECISIONS)}.")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"Expected `averaging` from 0 and below 1, but got {self.averaging}: 0 for none.")
        for name in ("learning_rates", "prior_scales"):
            rates = getattr(self, name)
            if not isinstance(rates, tuple) or not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
                raise ValueError(f"Expected `{name}` above 0, a tuple of at least one, but got {rates}: (0.001,), say.")


@dataclass(frozen=True)
class Source:
    """Where nodules come from: contour volumes of the package, or a file.

    Attributes:
        name: "contours", or the file's name without its ending.
        digest: SHA-256 of the file's content, or "" for what comes with the package; what a run depends on.
        path: of the file. Not part of what a run is: the same content elsewhere is the same run.
    """

    name: str
    digest: str = ""
    path: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """One run, and all that its result depends on.

    Attributes:
        data, digest: of the `Source`.
        task: "binary" (benign or malignant), "rating" (1 to 5), "balanced" (binary, half of each, with metadata).
        net, likelihood, loss, marginal, inference: by name.
        population: π of malignant nodules; None for ratings: the shares of the readers' votes in the whole data set.
        evidence: κ.
        minibatches: "rebalanced" (equal classes, with replacement) or "raw" (as the training part has them).
        fold, num_folds: tested is fold number `fold`, validated on the next, trained on the others.
        seed: of first weights, minibatches, views and dropout.
        training: the rest.
    """

    data: str
    digest: str
    task: str
    net: str
    likelihood: str
    loss: str
    marginal: str
    inference: str
    population: float | None
    evidence: float
    minibatches: str
    fold: int
    num_folds: int
    seed: int
    training: Training

    @property
    def label(self) -> str:
        """For progress and errors."""
        rate = "own shares" if self.population is None else f"π = {self.population:g}"
        parts = [self.data, self.net, METHODS[self.loss].title, rate]
        parts += [name for name, usual in self._unusual() if name != usual]
        return ", ".join(parts) + f", fold {self.fold + 1}, seed {self.seed}"

    @property
    def key(self) -> str:
        """Name of its files: readable, and different for whatever could give a different result."""
        content = json.dumps([__version__, dataclasses.asdict(self)], sort_keys=True)
        rate = "own" if self.population is None else f"{self.population:g}"
        words = [self.data, self.net, *(name for name, usual in self._unusual() if name != usual), self.loss, rate]
        readable = re.sub(r"[^\w.]+", "-", "-".join([*words, f"fold{self.fold}", f"seed{self.seed}"]))
        return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    def _unusual(self) -> list[tuple[str, str]]:
        return [
            (self.likelihood, "categorical"),
            (self.marginal, "own"),
            (self.inference, "map"),
            (self.minibatches, "rebalanced"),
        ]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunConfig:
        return cls(**{**content, "training": _training(content["training"])})


@dataclass(frozen=True)
class Group:
    """Runs that share data, fold, seed and minibatches: trained side by side on the same views and low-level features."""

    source: Source
    runs: tuple[RunConfig, ...]

    @property
    def label(self) -> str:
        first = self.runs[0]
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"{first.data}, fold {first.fold + 1}, seed {first.seed}: {runs}"


@dataclass(frozen=True)
class StudyConfig:
    """The grid: every combination of these is a run.

    Attributes:
        preset: its name.
        task: as of a run.
        sources: where nodules come from.
        nets, losses, populations, likelihoods, marginals, inferences, minibatches: as of a run, each a tuple of choices.
            A loss without a marginal is run with "own" alone.
        folds: so many of the first of `num_folds` are tested.
        num_folds: into which the patients are split.
        seeds: how many.
        evidence: κ of the information gain; that of the published form is 0.
        training: how every net is trained.
    """

    preset: str
    task: str = "binary"
    sources: tuple[Source, ...] = (Source(CONTOURS),)
    nets: tuple[str, ...] = ("convnet",)
    losses: tuple[str, ...] = ("information-gain", "published", "weighted", "logit-adjusted", "corrected")
    populations: tuple[float | None, ...] = (0.3, 0.001)
    likelihoods: tuple[str, ...] = ("categorical",)
    marginals: tuple[str, ...] = ("own",)
    inferences: tuple[str, ...] = ("map",)
    minibatches: tuple[str, ...] = ("rebalanced",)
    folds: int = 5
    num_folds: int = 10
    seeds: int = 1
    evidence: float = EVIDENCE
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_combinations()

    def runs(self) -> list[RunConfig]:
        """Every run, those of one group next to each other."""
        return [run for group in self.groups() for run in group.runs]

    def groups(self) -> list[Group]:
        """By source, seed, fold and minibatches."""
        shared = itertools.product(self.sources, range(self.seeds), range(self.folds), self.minibatches)
        return [Group(source, tuple(self._runs(source, seed, fold, draws))) for source, seed, fold, draws in shared]

    def to_dict(self) -> dict[str, Any]:
        """As in `study.json`: without paths, which are of one machine."""
        content: dict[str, Any] = json.loads(json.dumps({"version": __version__, **dataclasses.asdict(self)}))
        for source in content["sources"]:
            del source["path"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> StudyConfig:
        """From what `to_dict` gave; the sources have no paths."""
        plain = _tuples(content)
        del plain["version"]
        sources = tuple(Source(**source) for source in content["sources"])
        return cls(**{**plain, "sources": sources, "training": _training(content["training"])})

    def _runs(self, source: Source, seed: int, fold: int, minibatches: str) -> list[RunConfig]:
        grid = itertools.product(self.nets, self.likelihoods, self.inferences, self.populations, self.losses, self.marginals)
        return [
            RunConfig(
                data=source.name,
                digest=source.digest,
                task=self.task,
                net=net,
                likelihood=likelihood,
                loss=loss,
                marginal=marginal,
                inference=inference,
                population=population,
                evidence=self.evidence if METHODS[loss].takes_evidence else 0.0,
                minibatches=minibatches,
                fold=fold,
                num_folds=self.num_folds,
                seed=seed,
                training=self.training,
            )
            for net, likelihood, inference, population, loss, marginal in grid
            if METHODS[loss].takes_marginal or marginal == "own"
        ]

    def _check_names(self) -> None:
        known = {
            "nets": NETS,
            "losses": tuple(METHODS),
            "likelihoods": LIKELIHOODS,
            "marginals": MARGINALS,
            "inferences": INFERENCES,
            "minibatches": MINIBATCHES,
        }
        if self.task not in TASKS:
            raise ValueError(f"Expected a task, but got {self.task!r}: choose among {', '.join(TASKS)}.")
        for name, choices in known.items():
            given = getattr(self, name)
            wrong = [each for each in given if each not in choices]
            if wrong or not given:
                came = ", ".join(map(repr, wrong)) or "none"
                raise ValueError(f"Expected known {name}, but got {came}: choose among {', '.join(choices)}.")
        for name in (*known, "populations", "sources"):
            given = [each.name if isinstance(each, Source) else each for each in getattr(self, name)]
            if len(set(given)) < len(given) or not given:
                raise ValueError(f"Expected {name}, each once, but got {given}: leave out what stands there twice.")

    def _check_numbers(self) -> None:
        for population in self.populations:
            if population is None:
                continue
            number = isinstance(population, int | float) and not isinstance(population, bool)
            if not number or not 0 < population < 1:
                raise ValueError(
                    f"Expected a prevalence between 0 and 1, but got {population!r}: "
                    "the share of malignant nodules in the population, such as 0.001."
                )
        _check_count(self.seeds, "seeds")
        if self.seeds > MOST_SEEDS:
            raise ValueError(
                f"Expected at most {MOST_SEEDS:,} seeds, but got {self.seeds:,}: a handful tells how much they matter."
            )
        if not isinstance(self.num_folds, int) or self.num_folds < 3:
            raise ValueError(f"Expected 3 folds or more, but got {self.num_folds}: to test, to validate, and to train on.")
        if not isinstance(self.folds, int) or not 1 <= self.folds <= self.num_folds:
            raise ValueError(f"Expected folds to be tested, but got {self.folds}: from 1 to the {self.num_folds} there are.")
        if not (math.isfinite(self.evidence) and self.evidence >= 0):
            raise ValueError(f"Expected evidence from 0 up, but got {self.evidence}: people counted per training example.")

    def _check_combinations(self) -> None:
        ordinal = [each for each in self.likelihoods if each != "categorical"]
        if self.task == "rating":
            if any(population is not None for population in self.populations):
                raise ValueError("Expected no prevalence for ratings, but got one: their population is the data set's shares.")
        elif None in self.populations:
            raise ValueError(
                "Expected a prevalence for two classes, but got None: the share of malignant nodules, such as 0.001."
            )
        elif ordinal:
            raise ValueError(f"Expected the likelihood 'categorical' for two classes, but got {ordinal}: ratings have these.")
        if "classwise" in self.marginals and (self.task == "rating" or "raw" in self.minibatches):
            raise ValueError(
                "Expected rebalanced minibatches of two classes for the marginal 'classwise', but got others: it needs every "
                "class in every minibatch; take 'running' or 'batch'."
            )
        images = [net for net in self.nets if net in (*IMAGE_NETS, "both")]
        slow = [each for each in self.inferences if each in OF_TABLES]
        if images and slow:
            raise ValueError(
                f"Expected the inference map, ensemble or mc-dropout for nets of images, but got {', '.join(slow)} for "
                f"{', '.join(images)}: take the net 'mlp', which reads the nodules' features."
            )
        if slow and "rebalanced" in self.minibatches:
            raise ValueError(
                f"Expected raw minibatches for {', '.join(slow)}, but got rebalanced ones: a posterior counts every training "
                "example once."
            )


def _training(content: Mapping[str, Any]) -> Training:
    return Training(**_tuples(content))


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists in their place."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


def _check_count(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"Expected `{name}` to be a whole number, but got {value!r}: 1 is the least.")
