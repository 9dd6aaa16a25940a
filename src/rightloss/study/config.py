"""Configuration of a study: the grid, its runs and groups, and the presets.

Stage: `StudyConfig` → `RunConfig`s → `Group`s of runs that share data, fold, seed and minibatches.

Each field that `rightloss study` can set has its `Option` beside its default, where the command line reads it.
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
from ..arrays import checked_choice, checked_int, checked_number
from .methods import ADJUSTED, EVIDENCE, METHODS, STARTS

TASKS = ("binary", "rating", "balanced")
IMAGE_NETS = ("convnet", "inception", "fully-convolutional", "gated")
NETS = (*IMAGE_NETS, "both", "metadata", "mlp")  # image and metadata; metadata's block alone; features alone
LIKELIHOODS = ("categorical", "onion-peeling", "stick-breaking", "cumulative-logit")
INFERENCES = ("map", "ensemble", "mc-dropout", "laplace", "variational", "sghmc")
OF_TABLES = INFERENCES[3:]  # for nets without images: each takes many passes over the data
MINIBATCHES = ("rebalanced", "raw")
MOST_SEEDS = 1000
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
CONTOURS = "contours"


# Panels of the command's help.
COMPARED, FOLDS, TRAINED, MACHINE = "What is compared", "Folds and repetitions", "Training", "Where it runs"


@dataclass(frozen=True)
class Option:
    """A command-line option for a field of the config.

    Attributes:
        name: of the option, without dashes.
        panel: section of the help text.
        help: what it means.
        metavar: placeholder of the value; None for the type of the field.
    """

    name: str
    panel: str
    help: str
    metavar: str | None = None

    @property
    def parameter(self) -> str:
        """Name of the command's parameter."""
        return self.name.replace("-", "_")


def _option(default: Any, name: str, help: str, panel: str = TRAINED, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"option": Option(name, panel, help, metavar)})


def options_of(config: type) -> dict[str, Option]:
    """Return the option of each field that the command line can set, by the field's name."""
    return {each.name: each.metadata["option"] for each in dataclasses.fields(config) if "option" in each.metadata}


@dataclass(frozen=True)
class Training:
    """How every net is trained, whatever its loss: `rightloss study --help` explains each field. Choices are made on the
    validation part, by one rule for all losses.

    Step sizes are AdamW's initial ones and decay to 0 along a half cosine. Views are random in each training minibatch, and
    fixed in validation and test (`test_views`, a multiple of 3). An ensemble has `members` nets, MC dropout as many masks.
    """

    steps: int = _option(300, "steps", "Number of training steps, one minibatch each.")
    batch_size: int = _option(32, "batch-size", "Nodules in a minibatch.")
    views: int = _option(3, "views", "Views of a nodule in training, a multiple of 3.")
    test_views: int = 9
    learning_rates: tuple[float, ...] = _option(
        (1e-3,), "learning-rate", "Initial step size; of several, the validation part chooses one.", metavar="RATE"
    )
    checkpoints: int = _option(
        10, "checkpoints", "How often a net is scored on the validation part; the best checkpoint is kept."
    )
    weight_decay: float = 1e-4
    averaging: float = _option(
        0.98, "averaging", "Decay of the running mean of the weights, which is used for predictions; 0 for none."
    )
    small: bool = _option(True, "small", "Small nets for CPUs, or the paper's nets.")
    members: int = 5
    prior_scales: tuple[float, ...] = _option(
        (0.3, 1.0, 3.0, 10.0, 30.0),
        "prior-scale",
        "Prior scale for laplace, variational and sghmc; of several, the validation part chooses one.",
        metavar="SCALE",
    )
    precision: str = _option(
        "32-true", "precision", "32-true, 64-true, bf16-mixed, bf16-true, 16-mixed or 16-true; results depend on it.", MACHINE
    )

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "views", "test_views", "members"):
            checked_int(getattr(self, name), name, 1)
        for name in ("views", "test_views"):
            if getattr(self, name) % 3:
                raise ValueError(
                    f"Expected `{name}` to be a multiple of 3, but got {getattr(self, name)}: views come in triplets."
                )
        checked_int(self.checkpoints, "checkpoints", 1, self.steps, "no more than there are steps")
        checked_number(self.weight_decay, "weight_decay", 0.0)
        if not 0 <= self.averaging < 1:
            raise ValueError(f"Expected `averaging` from 0 and below 1, but got {self.averaging}: 0 for none.")
        checked_choice(self.precision, "precision", PRECISIONS)
        for name in ("learning_rates", "prior_scales"):
            rates = getattr(self, name)
            if not isinstance(rates, tuple) or not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
                raise ValueError(f"Expected `{name}` above 0, a tuple of at least one, but got {rates}: (0.001,), say.")


@dataclass(frozen=True)
class Source:
    """Where nodules come from: contour volumes of the package, or a file.

    Attributes:
        name: "contours", or the file's name without its ending.
        digest: SHA-256 of the file's content, or "" for data in the package; part of a run.
        path: of the file; not part of a run: the same content at another path is the same run.
    """

    name: str
    digest: str = ""
    path: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """One run: everything that its result depends on.

    Attributes:
        data, digest: of the `Source`.
        task: "binary" (benign or malignant), "rating" (1 to 5), "balanced" (binary, half of each, with metadata).
        net, likelihood, loss, inference: by name.
        start: of the output bias: "population" (the mix that the loss's logits are for) or "equal" (classes, ½ for two).
        population: π of malignant nodules; None for ratings: the shares of the readers' votes in the whole data set.
        evidence: κ.
        minibatches: "rebalanced" (equal classes, with replacement) or "raw" (class frequencies of the training part).
        fold, num_folds: fold number `fold` is tested, the next one validates, the others train.
        seed: of first weights, minibatches, views and dropout.
        training: how its nets are trained.
        unlabelled: share of the training patients who lose their labels and stand for the population.
        unlabelled_weight: λ, their mass relative to the labelled ones in the likelihood; None for 1.
    """

    data: str
    digest: str
    task: str
    net: str
    likelihood: str
    loss: str
    start: str
    inference: str
    population: float | None
    evidence: float
    minibatches: str
    fold: int
    num_folds: int
    seed: int
    training: Training
    unlabelled: float = 0.0
    unlabelled_weight: float | None = None

    @property
    def learns_from_unlabelled(self) -> bool:
        """Whether its loss sees the unlabelled patients."""
        return self.unlabelled > 0 and METHODS[self.loss].takes_unlabelled

    @property
    def label(self) -> str:
        """Return a name for progress and errors."""
        rate = "own shares" if self.population is None else f"π = {self.population:g}"
        parts = [self.data, self.net, METHODS[self.loss].title, rate]
        parts += [name for name, usual in self._unusual() if name != usual]
        return ", ".join(parts) + f", fold {self.fold + 1}, seed {self.seed}"

    @property
    def key(self) -> str:
        """Return the name of its files: readable, and unique for everything that could change the result."""
        rate = "own" if self.population is None else f"{self.population:g}"
        words = [self.data, self.net, *(name for name, usual in self._unusual() if name != usual), self.loss, rate]
        return unique_name("-".join([*words, f"fold{self.fold}", f"seed{self.seed}"]), [__version__, self.to_dict()])

    def _unusual(self) -> list[tuple[str, str]]:
        return [
            (self.likelihood, "categorical"),
            (f"start at {self.start}", "start at population"),
            (self.inference, "map"),
            (self.minibatches, "rebalanced"),
            (f"{100 * self.unlabelled:g} % unlabelled", "0 % unlabelled"),
            ("" if self.unlabelled_weight is None else f"weight {self.unlabelled_weight:g}", ""),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a run's JSON; if every patient is labelled, without the fields for unlabelled ones."""
        return _without_unused(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunConfig:
        return cls(**{**content, "training": _training(content["training"])})


@dataclass(frozen=True)
class Group:
    """Runs that share data, fold, seed and minibatches, trained side by side on the same views and low-level features."""

    source: Source
    runs: tuple[RunConfig, ...]

    @property
    def label(self) -> str:
        first = self.runs[0]
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"{first.data}, fold {first.fold + 1}, seed {first.seed}: {runs}"


@dataclass(frozen=True)
class StudyConfig:
    """The grid: every combination of its choices is a run.

    The evidence of the published form is 0. `rightloss study --help` explains the fields that are not below.

    Attributes:
        preset: the study's name.
        task: "binary" (benign or malignant), "rating" (1 to 5), "balanced" (binary, half of each, with metadata).
        populations: π of malignant nodules; None for ratings: the shares of the readers' votes in the whole data set.
        training: how every net is trained.

    Examples:
        >>> from rightloss.study import StudyConfig
        >>> config = StudyConfig("quick", losses=("information-gain", "weighted"), populations=(0.3, 0.001), folds=2)
        >>> len(config.runs()), len(config.groups())
        (8, 2)
        >>> print(config.groups()[0].label)
        contours, fold 1, seed 0: 4 runs
    """

    preset: str
    task: str = "binary"
    sources: tuple[Source, ...] = _option(
        (Source(CONTOURS),), "data", "contours, a nodule archive, or NoduleMNIST3D's file (.npz).", COMPARED, "PATH"
    )
    nets: tuple[str, ...] = _option(
        ("convnet",),
        "net",
        "convnet, inception, fully-convolutional, gated; both (image and metadata), metadata, mlp (features alone).",
        COMPARED,
    )
    losses: tuple[str, ...] = _option(
        ("information-gain", "published", "weighted", "logit-adjusted", "corrected"), "loss", f"{', '.join(METHODS)}.", COMPARED
    )
    populations: tuple[float | None, ...] = _option(
        (0.3, 0.001), "prevalence", "Share of malignant nodules in the population, between 0 and 1.", COMPARED, "RATE"
    )
    likelihoods: tuple[str, ...] = _option(
        ("categorical",),
        "likelihood",
        "categorical; for ratings also onion-peeling, stick-breaking, cumulative-logit.",
        COMPARED,
    )
    starts: tuple[str, ...] = _option(
        ("population",),
        "start",
        "Output bias before training: population (the class frequencies that the loss's logits are for) or equal (½ for two).",
        COMPARED,
    )
    inferences: tuple[str, ...] = _option(
        ("map",), "inference", "map, ensemble, mc-dropout; for mlp and metadata also laplace, variational, sghmc.", COMPARED
    )
    minibatches: tuple[str, ...] = _option(
        ("rebalanced",), "minibatches", "rebalanced (equal classes) or raw (class frequencies of the data).", COMPARED
    )
    folds: int = _option(5, "folds", "Number of folds to test.", FOLDS)
    num_folds: int = _option(10, "num-folds", "Number of folds that the patients are split into.", FOLDS)
    seeds: int = _option(1, "seeds", "Number of repetitions with different random seeds; 5 for toy.", FOLDS)
    evidence: float = _option(
        EVIDENCE, "evidence", "Evidence for the prevalence, κ: people counted by class alone, per training example.", COMPARED
    )
    training: Training = field(default_factory=Training)
    unlabelled: float = _option(
        0.0,
        "unlabelled",
        "Share of the training patients who lose their labels and stand for the population.",
        COMPARED,
        "SHARE",
    )
    unlabelled_weight: float | None = _option(
        None,
        "unlabelled-weight",
        "Mass of the unlabelled patients relative to the labelled ones in the likelihood; 1 by default.",
        COMPARED,
        "NUMBER",
    )

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_combinations()

    def runs(self) -> list[RunConfig]:
        """Return every run, the runs of one group next to each other."""
        return [run for group in self.groups() for run in group.runs]

    def groups(self) -> list[Group]:
        """Return the groups: by source, seed, fold and minibatches."""
        shared = itertools.product(self.sources, range(self.seeds), range(self.folds), self.minibatches)
        return [Group(source, tuple(self._runs(source, seed, fold, draws))) for source, seed, fold, draws in shared]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `study.json`: without paths, which differ between machines."""
        own = _without_unused(dataclasses.asdict(self))
        content: dict[str, Any] = json.loads(json.dumps({"version": __version__, **own}))
        for source in content["sources"]:
            del source["path"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> StudyConfig:
        """Return the config that `to_dict` wrote; its sources have no paths."""
        plain = _tuples(content)
        del plain["version"]
        sources = tuple(Source(**source) for source in content["sources"])
        return cls(**{**plain, "sources": sources, "training": _training(content["training"])})

    def _runs(self, source: Source, seed: int, fold: int, minibatches: str) -> list[RunConfig]:
        grid = itertools.product(self.nets, self.likelihoods, self.inferences, self.populations, self.losses, self.starts)
        return [
            RunConfig(
                data=source.name,
                digest=source.digest,
                task=self.task,
                net=net,
                likelihood=likelihood,
                loss=loss,
                start=start,
                inference=inference,
                population=population,
                evidence=self.evidence if METHODS[loss].takes_evidence else 0.0,
                minibatches=minibatches,
                fold=fold,
                num_folds=self.num_folds,
                seed=seed,
                training=self.training,
                unlabelled=self.unlabelled,
                unlabelled_weight=self.unlabelled_weight if METHODS[loss].weighs_unlabelled else None,
            )
            for net, likelihood, inference, population, loss, start in grid
        ]

    def _check_names(self) -> None:
        known: dict[str, tuple[str, ...]] = {
            "nets": NETS,
            "losses": tuple(METHODS),
            "likelihoods": LIKELIHOODS,
            "starts": STARTS,
            "inferences": INFERENCES,
            "minibatches": MINIBATCHES,
        }
        checked_choice(self.task, "task", TASKS)
        for name in (*known, "populations", "sources"):
            given = [each.name if isinstance(each, Source) else each for each in getattr(self, name)]
            if len(set(given)) < len(given) or not given:
                raise ValueError(f"Expected {name}, each once, but got {given or 'none'}: leave out what is given twice.")
            for each in given if name in known else ():
                checked_choice(each, name, known[name])

    def _check_numbers(self) -> None:
        for population in self.populations:
            if population is not None and not (isinstance(population, float) and 0 < population < 1):
                raise ValueError(
                    f"Expected a prevalence between 0 and 1, but got {population!r}: "
                    "the share of malignant nodules in the population, such as 0.001."
                )
        checked_int(self.seeds, "seeds", 1, MOST_SEEDS, "a few are enough to see the variation")
        checked_int(self.num_folds, "num_folds", 3, remedy="to test, to validate, and to train on")
        checked_int(self.folds, "folds", 1, self.num_folds, "the number of folds to test")
        checked_number(self.evidence, "evidence", 0.0, remedy="people counted per training example")
        remedy = "the share of the training patients who lose their labels, such as 0.8"
        checked_number(self.unlabelled, "unlabelled", 0.0, 0.9999, remedy)
        if self.unlabelled_weight is not None:
            remedy = "the mass of the unlabelled patients against the labelled ones, such as 3"
            checked_number(self.unlabelled_weight, "unlabelled_weight", 1e-6, remedy=remedy)

    def _check_combinations(self) -> None:
        ordinal = [each for each in self.likelihoods if each != "categorical"]
        if self.task == "rating" and self.populations != (None,):
            raise ValueError("Expected no prevalence for ratings, but got one: their population is the data set's shares.")
        if self.task != "rating" and None in self.populations:
            raise ValueError(
                "Expected a prevalence for two classes, but got None: the share of malignant nodules, such as 0.001."
            )
        if self.task != "rating" and ordinal:
            raise ValueError(f"Expected the likelihood 'categorical' for two classes, but got {ordinal}: ratings have these.")
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
        self._check_unlabelled()

    def _check_unlabelled(self) -> None:
        alone = [loss for loss in self.losses if METHODS[loss].labelled_only]
        if alone and not self.unlabelled:
            raise ValueError(
                f"Expected unlabelled patients for the loss {alone[0]!r}, but got none: add --unlabelled 0.8, say, or take "
                f"{ADJUSTED!r}, which is the same without them."
            )
        if self.unlabelled_weight is not None and not self.unlabelled:
            raise ValueError(
                f"Expected unlabelled patients with a weight of them, but got {self.unlabelled_weight:g} and none: add "
                "--unlabelled 0.8, say, or leave the weight out."
            )
        slow = [each for each in self.inferences if each in OF_TABLES]
        other = [loss for loss in self.losses if METHODS[loss].marginal is not None]
        if other and self.unlabelled and (slow or "published-network" in other):
            raise ValueError(
                f"Expected the loss 'published' with unlabelled patients, but got {', '.join(other)}: its marginal is then over"
                " the unlabelled patients."
            )


def _training(content: Mapping[str, Any]) -> Training:
    return Training(**_tuples(content))


def _without_unused(content: dict[str, Any]) -> dict[str, Any]:
    """Drop `unlabelled` and its weight if they are not used, so that older configs keep their keys."""
    return {name: value for name, value in content.items() if not name.startswith("unlabelled") or value}


def unique_name(readable: str, content: Any) -> str:
    """Return a file name that anybody can read, and that differs whenever the content, which JSON can hold, does."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return re.sub(r"[^\w.]+", "-", readable) + f"-{digest[:12]}"


def label_draw(data: str, fold: int, seed: int) -> str:
    """Return the seed that chooses which patients lose their labels: the same for all runs of a group."""
    return f"unlabelled|{data}|{fold}|{seed}"


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with tuples in place of JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


_BOTH_NETS = IMAGE_NETS[:2]
_FULL = Training(steps=2000, views=9, learning_rates=(1e-3, 3e-4), checkpoints=20, averaging=0.99, small=False)
# The paper's Tables 1 and 2: both nets, both prevalences, five of ten folds.
_TABLE = StudyConfig("table1", nets=_BOTH_NETS, training=_FULL)

PRESETS: dict[str, StudyConfig] = {
    "quick": StudyConfig(
        "quick",
        losses=("information-gain", "published", "published-network", "weighted", "corrected"),
        starts=("population", "equal"),
        folds=4,
        training=Training(steps=160, checkpoints=5),
    ),
    "table1": _TABLE,
    "table2": StudyConfig("table2", nets=_BOTH_NETS, minibatches=("raw",), training=_FULL),
    "prevalence-sweep": StudyConfig("prevalence-sweep", populations=(0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), training=_FULL),
    "ratings": StudyConfig(
        "ratings",
        task="rating",
        likelihoods=(LIKELIHOODS[1], *LIKELIHOODS[2:], LIKELIHOODS[0]),
        populations=(None,),
        training=_FULL,
    ),
    "metadata": StudyConfig(
        "metadata",
        task="balanced",
        nets=("convnet", "metadata", "both"),
        populations=(0.5, 0.3, 0.03, 0.001),
        folds=10,
        training=_FULL,
    ),
    "features": StudyConfig(
        "features",
        nets=("mlp",),
        inferences=("map", "ensemble", "mc-dropout", "laplace", "variational", "sghmc"),
        populations=(0.3, 0.01, 0.001),
        minibatches=("raw",),
        folds=10,
        training=Training(steps=1000, batch_size=128, learning_rates=(1e-2, 3e-3), checkpoints=20, averaging=0.99),
    ),
}
