"""The order in which a study goes: everything is checked before anything is written.

Stage: name of a preset, folder, options → results, tables and report in the folder, the table on the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..study.config import Group, StudyConfig
from ..study.results import read_config
from .bar import progress
from .errors import require
from .folder import check_folder
from .grid import NAMES, TOY, configured

_TOY_SIZE = 4_000_000  # bytes


def start(preset: str, out: Path | None, dry_run: bool, verbose: bool, options: Mapping[str, Any]) -> None:
    """Run the study, or say what it would do, for which no folder is needed."""
    if preset not in NAMES:
        raise ValueError(f"Expected a known study, but got {preset!r}: choose among {', '.join(NAMES)}.")
    require("rich", "matplotlib", "lightning", "threadpoolctl", "pandas")
    if preset == TOY:
        _toy(out, options, dry_run, verbose)
    else:
        _study(configured(preset, options), out, options, dry_run, verbose)


def _study(config: StudyConfig, out: Path | None, options: Mapping[str, Any], dry_run: bool, verbose: bool) -> None:
    from ..study.estimate import disk_space
    from .machine import machine_of
    from .pages import PAGES_SIZE, made_pages, make_pages, show_pages

    missing = config.groups() if out is None else missing_groups(config, out)
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
        from ..study.execute import run_study

        with progress("groups", machine.workers) as show:
            results = run_study(config, out, machine.engine, show, machine.work)
            show(len(config.groups()), len(config.groups()), "tables and report")
            summary = make_pages(results, out)
    show_pages(summary, out)


def missing_groups(config: StudyConfig, out: Path) -> list[Group]:
    """The groups with those of their runs that have no result in `out`, which is no other's folder."""
    if (out / "study.json").exists():
        read_config(out)
    done = {path.stem for path in (out / "runs").glob("*.json")}
    groups = [replace(each, runs=tuple(run for run in each.runs if run.key not in done)) for each in config.groups()]
    return [group for group in groups if group.runs]


def _toy(out: Path | None, options: Mapping[str, Any], dry_run: bool, verbose: bool) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name in options if name != "seeds"]
    if wrong:
        raise ValueError(f"Expected --seeds alone with the study {TOY}, but got {', '.join(wrong)}: leave it out.")
    with progress("runs") as show:
        from ..study import toy

        config = toy.ToyConfig(**options)
        if out is not None:
            check_folder(out, _TOY_SIZE)
        if dry_run:
            from .dry_run import print_toy_plan

            return print_toy_plan(config, verbose)
        assert out is not None
        results = toy.run_toy(config, out, show)
    toy.print_results(results)
    for name in toy.FILES:
        print(out / name)
