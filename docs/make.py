"""Make what the documentation shows: pages, parts of pages and pictures, each from the files or programs that it names.

.venv/bin/python docs/make.py results [FOLDER]         # the toy study, results/toy by default: after `make toy`
.venv/bin/python docs/make.py study FOLDER [NAME]      # a study's part of its page: after `rightloss study`
.venv/bin/python docs/make.py paper --run [NAME …]     # the studies of the paper's claims: hours; stop and resume at will
.venv/bin/python docs/make.py paper                    # their page again from the stored predictions; trains nothing
.venv/bin/python docs/make.py charts                   # the charts of the toy study and of the claims
.venv/bin/python docs/make.py programs [PAGE …]        # what the programs of pages print and draw
.venv/bin/python docs/make.py notebooks [NOTEBOOK …]   # notebooks, executed again, and their pages
.venv/bin/python docs/make.py map                      # the map of the package in CONTRIBUTING.md
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"results": "studies", "study": "studies", "map": "package_map"}  # where the name is not the task's


def main() -> None:
    """Run the task by the function of its name; what it imports depends on the task, so that the map needs no package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    results, study, paper, _, programs, notebooks, _ = (
        tasks.add_parser(name) for name in ("results", "study", "paper", "charts", "programs", "notebooks", "map")
    )
    results.add_argument("folder", type=Path, nargs="?", default=ROOT / "results" / "toy")
    study.add_argument("folder", type=Path)
    study.add_argument("name", nargs="?", help="of the part; the folder's name by default")
    study.add_argument("--command", help="command that made the results, as shown on the page")
    paper.add_argument("names", nargs="*", help="with --run: some of the studies; all by default")
    paper.add_argument("--run", action="store_true", help="run the studies, and write no page")
    paper.add_argument("--seeds", type=int, default=1, help="with --run: repetitions; more can be added later")
    paper.add_argument("--workers", type=int, help="with --run: processes; one per processor by default")
    programs.add_argument("pages", type=Path, nargs="*", help="write outputs into them; by default only draw, for every page")
    notebooks.add_argument("notebooks", type=Path, nargs="*", help="all of docs/notebooks by default")
    options = vars(parser.parse_args())
    task = options.pop("task")
    getattr(import_module(f"scripts.{MODULES.get(task, task)}"), f"make_{task}")(**options)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"make.py: {error}")
