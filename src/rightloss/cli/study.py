"""`rightloss study PRESET --out DIR`: what can be asked for.

Stage: arguments of the shell → name of a preset, a folder, the options that were given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .errors import plain_errors

_COMPARE, _FOLDS, _TRAINING, _MACHINE = "What is compared", "Folds and repetitions", "Training", "Where it runs"


# Words of the field and of the library, and the options that they stand for here.
_MEANT = {
    "--population": "--prevalence",
    "--populations": "--prevalence",
    "--pi": "--prevalence",
    "--kappa": "--evidence",
    "--lr": "--learning-rate",
    "--epochs": "--steps",
}


class StudyCommand(TyperCommand):
    """Its help tells what each preset has; the presets are not imported for anything less."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of typer's own, or of click's, by version
            if meant := _MEANT.get(getattr(error, "option_name", "")):
                error.possibilities = [meant]  # type: ignore[attr-defined]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from .grid import default_of

        for option in self.params:
            if isinstance(option.name, str) and (text := default_of(option.name)):
                option.help = f"{option.help} By default {text}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _of(panel: str, text: str, *names: str, repeat: bool = False, metavar: str | None = None) -> Any:
    """An option. One that repeats takes names, unless it says otherwise."""
    text = f"{text} Give it again for more." if repeat else text
    metavar = metavar or ("NAME" if repeat else None)
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, metavar=metavar)


def study(
    preset: Annotated[
        str,
        typer.Argument(help="toy, quick, table1, table2, prevalence-sweep, ratings, metadata or features.", show_default=False),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for the results; a study that was stopped goes on from there. Needed but for --dry-run.",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        _of(_COMPARE, "contours, a nodule archive, or NoduleMNIST3D's file (.npz).", repeat=True, metavar="PATH"),
    ] = None,
    net: Annotated[
        list[str] | None,
        _of(
            _COMPARE,
            "convnet, inception, fully-convolutional, gated; both (image and metadata), metadata, mlp (features alone).",
            repeat=True,
        ),
    ] = None,
    loss: Annotated[
        list[str] | None,
        _of(_COMPARE, "information-gain, published, weighted, logit-adjusted, corrected, plain.", repeat=True),
    ] = None,
    prevalence: Annotated[
        list[str] | None,
        _of(_COMPARE, "Share of malignant nodules in the population, between 0 and 1.", repeat=True, metavar="RATE"),
    ] = None,
    likelihood: Annotated[
        list[str] | None,
        _of(_COMPARE, "categorical; for ratings also onion-peeling, stick-breaking, cumulative-logit.", repeat=True),
    ] = None,
    marginal: Annotated[
        list[str] | None,
        _of(_COMPARE, "Of the information gain: own (each loss its own), batch, classwise, running, auxiliary.", repeat=True),
    ] = None,
    inference: Annotated[
        list[str] | None,
        _of(_COMPARE, "map, ensemble, mc-dropout; for mlp and metadata also laplace, variational, sghmc.", repeat=True),
    ] = None,
    minibatches: Annotated[
        list[str] | None, _of(_COMPARE, "rebalanced (equal classes) or raw (as the data have them).", repeat=True)
    ] = None,
    evidence: Annotated[float | None, _of(_COMPARE, "People counted by class alone, per training example.")] = None,
    folds: Annotated[int | None, _of(_FOLDS, "How many folds are tested.")] = None,
    num_folds: Annotated[int | None, _of(_FOLDS, "Into how many folds the patients are split.")] = None,
    seeds: Annotated[int | None, _of(_FOLDS, "Repetitions, each with its own random numbers; toy has 5.")] = None,
    steps: Annotated[int | None, _of(_TRAINING, "Minibatches that each net is trained on.")] = None,
    batch_size: Annotated[int | None, _of(_TRAINING, "Nodules in a minibatch.")] = None,
    views: Annotated[int | None, _of(_TRAINING, "Views of a nodule in training, a multiple of 3.")] = None,
    test_views: Annotated[int | None, _of(_TRAINING, "Views of a nodule in validation and test, a multiple of 3.")] = None,
    learning_rate: Annotated[
        list[float] | None,
        _of(_TRAINING, "A first step size for the validation part to choose from.", repeat=True, metavar="RATE"),
    ] = None,
    checkpoints: Annotated[int | None, _of(_TRAINING, "How often a net is looked at on the validation part.")] = None,
    weight_decay: Annotated[float | None, _of(_TRAINING, "AdamW's.")] = None,
    averaging: Annotated[
        float | None, _of(_TRAINING, "Decay of the running mean of the weights, which is what predicts; 0 for none.")
    ] = None,
    prior_scale: Annotated[
        list[float] | None,
        _of(_TRAINING, "Of laplace, variational, sghmc: a scale to choose from.", repeat=True, metavar="SCALE"),
    ] = None,
    members: Annotated[int | None, _of(_TRAINING, "Nets of an ensemble, masks of MC dropout.")] = None,
    small: Annotated[bool | None, _of(_TRAINING, "Nets for CPUs, or the paper's.", "--small/--full")] = None,
    engine: Annotated[
        str | None,
        _of(
            _MACHINE,
            "in-process, processes, or ray. By default processes, or in-process where there is one core or several devices.",
        ),
    ] = None,
    workers: Annotated[
        int | None, _of(_MACHINE, "How many processes of this machine train at once. By default as many as cores.")
    ] = None,
    address: Annotated[str | None, _of(_MACHINE, "Of a Ray cluster. By default Ray is started on this machine.")] = None,
    accelerator: Annotated[str | None, _of(_MACHINE, "cpu, cuda, mps or auto. By default cpu.")] = None,
    devices: Annotated[int | None, _of(_MACHINE, "Devices that train one net together. By default 1.")] = None,
    precision: Annotated[
        str | None, _of(_MACHINE, "32-true, 64-true, bf16-mixed, bf16-true, 16-mixed or 16-true; part of what a run is.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and how long they take, and write nothing.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --dry-run: print every run.")] = False,
) -> None:
    """Run a study, print its table, and write tables and a report to a folder.

    toy: each loss on small synthetic populations whose best possible answer is known; two minutes.

    quick: lung nodules by their outlines, one small net, every loss; under ten minutes on two cores.

    table1, table2: the paper's tables, with rebalanced and with raw minibatches. prevalence-sweep: seven prevalences.

    ratings: malignancy from 1 to 5. metadata: image, metadata, both. features: posteriors over the weights of a small net.

    Options replace what the preset has. A study that was stopped goes on where it was; one that is done prints its table.
    """
    given = {name: value for name, value in locals().items() if value is not None and value != []}
    with plain_errors():
        from .running import start

        if not (dry_run if out is None else out.strip()):  # blank: an unset variable of the shell, and not this folder
            raise ValueError("Expected a folder for the results, but got none: --out results, say.")
        given["out"] = None if out is None else Path(out)
        start(**{name: given.pop(name) for name in ("preset", "out", "dry_run", "verbose")}, options=given)
