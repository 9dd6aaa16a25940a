"""`rightloss study PRESET --out DIR`: checks everything before it writes anything.

Stage: arguments of the shell → `StudyConfig`, `Machine` → results, tables and report in the folder, the table on the terminal.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from ..study.config import MACHINE, OF_TABLES, PRESETS, Group, StudyConfig, Training, options_of
from ..study.engines import Engine, InProcess, OnRay, Processes, Work, processors
from ..study.methods import ADJUSTED, ADJUSTED_LABELLED, METHODS
from .commands import argument, check_engine, option
from .terminal import progress, require

TOY = "toy"
NAMES = (TOY, *PRESETS)
ENGINES = ("in-process", "processes", "ray")
_TOY_SIZE = 4_000_000  # bytes
# Other common names of the options.
_SYNONYMS = {
    "--population": "--prevalence",
    "--populations": "--prevalence",
    "--pi": "--prevalence",
    "--kappa": "--evidence",
    "--lr": "--learning-rate",
    "--epochs": "--steps",
}
# The inferences that use each option.
_USED_BY = {"prior_scale": OF_TABLES}


class StudyCommand(TyperCommand):
    """The command: its help shows the defaults of each preset, and its errors suggest options for other common names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's own or click's, depending on the version
            if meant := _SYNONYMS.get(getattr(error, "option_name", "")):
                error.possibilities = [meant]  # type: ignore[attr-defined]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for each in self.params:
            if isinstance(each.name, str) and (text := default_of(each.name)):
                each.help = f"{each.help} By default {text}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


COMMAND_CLASS = StudyCommand


_machine = partial(option, rich_help_panel=MACHINE)
_ENGINE = "in-process, processes, or ray. By default processes, or in-process with one core or several devices."


def study(
    preset: Annotated[str, argument(f"{', '.join(NAMES[:-1])} or {NAMES[-1]}.")],
    out: Annotated[
        str | None, option("Folder for the results; a stopped study resumes there. Not needed with --dry-run.", metavar="PATH")
    ] = None,
    engine: Annotated[str | None, _machine(_ENGINE)] = None,
    workers: Annotated[int | None, _machine("Number of processes that train at once. By default one per core.")] = None,
    address: Annotated[str | None, _machine("Address of a Ray cluster. By default Ray is started on this machine.")] = None,
    accelerator: Annotated[str | None, _machine("cpu, cuda, mps or auto. By default cpu.")] = None,
    devices: Annotated[int | None, _machine("Number of devices that train one net together. By default 1.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and the time they take, and write nothing.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --dry-run: print every run.")] = False,
    **grid: Any,
) -> None:
    """Run a study, print its table, and write tables and a report to a folder.

    toy: each loss on small synthetic populations with a known optimum; minutes.

    quick: lung nodules by their outlines, one small net, five losses from two starts; under three minutes on two cores.

    table1, table2: the paper's tables, with rebalanced and with raw minibatches. prevalence-sweep: seven prevalences.

    ratings: malignancy from 1 to 5. metadata: image, metadata, both. features: posteriors over the weights of a small net.

    Options override the preset. A stopped study resumes; a finished one prints its table.
    """
    machine = {"engine": engine, "workers": workers, "address": address, "accelerator": accelerator, "devices": devices}
    options = {name: value for name, value in {**grid, **machine}.items() if value is not None and value != []}
    if not (dry_run if out is None else out.strip()):  # blank: an unset shell variable, not this folder
        raise ValueError("Expected a folder for the results, but got none: --out results, say.")
    folder = None if out is None else Path(out)
    if preset not in NAMES:
        raise ValueError(f"Expected a known study, but got {preset!r}: choose among {', '.join(NAMES)}.")
    require("rich", "matplotlib", "threadpoolctl", "pandas", "pebble")
    if preset == TOY:
        _run_toy(folder, options, dry_run, verbose)
    else:
        _run_study(configured(preset, options), folder, options, dry_run, verbose)


def _grid_parameters() -> Iterator[inspect.Parameter]:
    """Yield a command parameter for each config field that has an option. Options of tuples can be repeated."""
    for config in (StudyConfig, Training):
        kinds = get_type_hints(config)
        for field, known in options_of(config).items():
            kind, text, metavar = kinds[field], known.help, known.metavar
            if get_origin(kind) is tuple:
                kind = list[float] if get_args(kind)[0] is float else list[str]
                text, metavar = f"{text} Repeat the option for more.", metavar or "NAME"
            name = "--small/--full" if kind is bool else f"--{known.name}"
            kind = Annotated[kind | None, option(text, name, rich_help_panel=known.panel, metavar=metavar)]
            yield inspect.Parameter(known.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _signature() -> inspect.Signature:
    """Return the signature for typer: the parameters of `study`, with one for each option of the grid in place of `grid`."""
    preset, out, *others = list(inspect.signature(study, eval_str=True).parameters.values())[:-1]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
    return inspect.Signature([preset, out, *_grid_parameters(), *keywords])


study.__signature__ = _signature()  # type: ignore[attr-defined]


def configured(preset: str, options: Mapping[str, Any]) -> StudyConfig:
    """Return the preset with the given options; data files are read completely, as the last step.

    Raises:
        ValueError, FileNotFoundError: an invalid option or file.
        ModuleNotFoundError: a package that an inference needs is not installed.
    """
    from ..study.datasets import check_sources, source_of

    base = PRESETS[preset]
    grid, training = _given(StudyConfig, options), _given(Training, options)
    data = grid.pop("sources", None)
    if "populations" in grid:
        grid["populations"] = tuple(_prevalence(text) for text in grid["populations"])
    if grid.get("unlabelled") and "losses" not in grid:
        own = (loss for loss in base.losses if METHODS[loss].marginal is None)
        grid["losses"] = tuple(dict.fromkeys((*own, ADJUSTED, ADJUSTED_LABELLED)))  # to show what the unlabelled patients add
    config = replace(base, **grid, training=replace(base.training, **training))
    for name, inferences in _USED_BY.items():
        if name in options and not set(inferences) & set(config.inferences):
            raise ValueError(
                f"Expected --{name.replace('_', '-')} with an inference among {', '.join(inferences)}, but got "
                f"{', '.join(config.inferences)}: leave it out."
            )
    require(*(["arviz_stats"] if "sghmc" in config.inferences else []))
    if data is not None:
        config = replace(config, sources=tuple(map(source_of, data)))
    check_sources(config)
    return config


def _given(config: type[StudyConfig] | type[Training], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the given options, by config field."""
    given = {field: options.get(option.parameter) for field, option in options_of(config).items()}
    return {field: tuple(value) if isinstance(value, list) else value for field, value in given.items() if value is not None}


def _prevalence(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Expected a prevalence between 0 and 1, but got {text!r}: a number such as 0.001.") from None


def default_of(parameter: str) -> str:
    """Return the presets' values of an option: the most common first, the others by preset; "" if no preset has it."""
    from .dry_run import words

    by_value: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        for config in (preset, preset.training):
            for field, known in options_of(type(config)).items():
                if known.parameter == parameter and getattr(config, field) is not None:
                    by_value.setdefault(words(getattr(config, field)), []).append(name)
    if not by_value:
        return ""
    usual, *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
    return "; ".join([usual[0], *(f"{', '.join(names)}: {value}" for value, names in others)])


@dataclass(frozen=True)
class Machine:
    """Where groups are trained.

    Attributes:
        engine: runs them.
        work: trains one.
        workers: number of groups trained at once; for a remote Ray cluster, as on this machine.
        words: description that follows "with".
    """

    engine: Engine
    work: Work
    workers: int
    words: str


def machine_of(options: Mapping[str, Any], groups: int) -> Machine:
    """Return the machine for these options; raise ValueError if they conflict or a device is missing."""
    devices = options.get("devices", 1)
    name = options.get("engine", "processes" if processors() > 1 and devices == 1 else "in-process")
    check_engine(name, options.get("address"), ENGINES)
    if "workers" in options and name == "in-process":
        raise ValueError("Expected --workers with --engine processes, but got the engine in-process: leave it out.")
    if devices > 1 and name != "in-process":
        raise ValueError(
            f"Expected --engine in-process with {devices} devices, but got {name}: devices train one net together."
        )
    work = _work(options, elsewhere="address" in options)
    if name == "in-process":
        return Machine(InProcess(), work, 1, "1 process" if devices == 1 else f"{devices} devices")
    workers = min(options.get("workers", processors()), max(1, groups))
    if name == "processes":
        return Machine(Processes(workers), work, workers, "1 process" if workers == 1 else f"{workers} processes")
    require("ray")
    words = "Ray" if "address" in options else "1 worker of Ray" if workers == 1 else f"{workers} workers of Ray"
    return Machine(OnRay(options.get("address"), options.get("workers")), work, workers, words)


def _work(options: Mapping[str, Any], elsewhere: bool) -> Work:
    from ..study.training import Hardware, train_group

    given = {name: options[name] for name in ("accelerator", "devices") if name in options}
    hardware = Hardware(**given)
    if not elsewhere:  # raises an error for devices that this machine does not have
        hardware.fabric(options.get("precision", Training.precision))
    return partial(train_group, hardware=hardware) if given else train_group


def _run_study(config: StudyConfig, out: Path | None, options: Mapping[str, Any], dry_run: bool, verbose: bool) -> None:
    from ..study.execute import check_folder, disk_space, run_study
    from .report import PAGES_SIZE, made_pages, make_pages, show_pages

    missing = config.groups() if out is None else _missing_groups(config, out)
    machine = machine_of(options, len(missing))
    space = disk_space(sum(len(group.runs) for group in missing), len(config.sources)) + PAGES_SIZE
    if out is not None:
        check_folder(out, space)
    if dry_run:
        from .dry_run import print_plan

        print_plan(config, missing, machine, out, space, verbose)
        return
    assert out is not None
    summary = made_pages(config, out)
    if summary is None:
        with progress("groups") as show:
            results = run_study(config, out, machine.engine, show, machine.work)
            show(len(config.groups()), len(config.groups()), "tables and report")
            summary = make_pages(results, out)
    show_pages(summary, out)


def _missing_groups(config: StudyConfig, out: Path) -> list[Group]:
    """Return the groups with the runs that have no result in `out`, a study's folder or a new one."""
    from ..study.results import read_config

    if (out / "study.json").exists():
        read_config(out)
    done = {path.stem for path in (out / "runs").glob("*.json")}
    groups = [replace(each, runs=tuple(run for run in each.runs if run.key not in done)) for each in config.groups()]
    return [group for group in groups if group.runs]


def _run_toy(out: Path | None, options: Mapping[str, Any], dry_run: bool, verbose: bool) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name in options if name != "seeds"]
    if wrong:
        raise ValueError(f"Expected --seeds alone with the study {TOY}, but got {', '.join(wrong)}: leave it out.")
    with progress("runs") as show:
        from ..study.execute import check_folder
        from ..study.toy.study import ToyConfig, run_toy
        from ..study.toy.table import print_results

        config = ToyConfig(**options)
        if out is not None:
            check_folder(out, _TOY_SIZE)
        if dry_run:
            from .dry_run import print_toy_plan

            return print_toy_plan(config, verbose)
        assert out is not None
        results = run_toy(config, out, show)
    print_results(results)
    for name in ("table.csv", "report.md"):
        print(out / name)
