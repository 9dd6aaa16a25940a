"""Run a comparison, or write its page: `python -m evidence NAME`. Without a name, list them."""

from __future__ import annotations

import argparse
from importlib import import_module

from . import engine

COMPARISONS = {  # the page's name → the module that makes it, and what it asks
    "claim": ("claim", "which correction for a prevalence should be the default, on 24 data sets?"),
    "corrections": ("corrections", "which correction of a fitted classifier, on thirteen tables?"),
    "unlabelled": ("unlabelled", "what do unlabelled rows add to few labelled ones, if π is known?"),
    "unlabelled_1000": ("unlabelled", "… to 1,000 labelled rows of each class"),
    "unlabelled_unknown": ("unlabelled", "… if π is not known"),
    "unlabelled_evidence": ("unlabelled", "… if the mean prediction on them is held at π"),
}
# Settled questions: their pages stand as they are, their scripts in the last commit that has them.
ARCHIVED = {
    "claim_why": "why corrections differ, on two closed-form populations",
    "unlabelled_harm": "what if unlabelled rows are of another kind?",
    "unlabelled_efficiency": "how close do unlabelled rows come to the semiparametric bound?",
    "unlabelled_shift_test": "how often does the test of unlabelled rows warn?",
    "unlabelled_cost": "what do unlabelled rows cost, in time and memory?",
    "prevalence_estimates": "error and speed of prevalence estimates, against QuaPy and abstention",
    "forgotten_start": "what if `start_at_prevalence` is forgotten?",
    "label_frequencies": "a batch's label frequencies, or the declared ones, in the loss?",
    "boosting": "the boosting objectives, against the same boosters corrected afterwards",
}
LAST = "8bef3b4"


def comparison(name: str) -> engine.Comparison:
    """Return the comparison that makes the page `name`."""
    module = import_module(f"evidence.{COMPARISONS[name][0]}")
    found: tuple[engine.Comparison, ...] = getattr(module, "COMPARISONS", None) or (module.COMPARISON,)
    return next(each for each in found if each.name == name)


def main() -> None:
    asked = {name: words for name, (_, words) in COMPARISONS.items()} | {
        name: f"{words} (archived)" for name, words in ARCHIVED.items()
    }
    names = "\n".join(f"  {name:24}{words}" for name, words in asked.items())
    parser = argparse.ArgumentParser(
        "python -m evidence", description=f"{engine.__doc__}\nComparisons:\n\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", choices=list(asked), metavar="NAME")
    parser.add_argument("--docs", action="store_true", help="write the page from the stored results, run nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="FIELD=VALUE", help="only the cells with these values")
    parser.add_argument("--quick", action="store_true", help="few cells that are quick, for a look")
    parser.add_argument("--engine", choices=("processes", "ray"), default="processes")
    parser.add_argument("--workers", type=int, help="processes; one per processor by default")
    parser.add_argument("--address", help="of a Ray cluster; one on this machine by default")
    options = parser.parse_args()
    if options.name is None:
        return print(names)
    if options.name in ARCHIVED:
        return print(f"git worktree add ../then {LAST} && cd ../then && python benchmarks/{options.name}.py --docs")
    one = comparison(options.name)
    if options.docs:
        return one.write_page()
    from rightloss.study.engines import OnRay, Processes

    made = OnRay(options.address, options.workers) if options.engine == "ray" else Processes(options.workers)
    folder = engine.execute(one, options.only, options.quick, made, f"python -m evidence {one.name}")
    print(folder / f"{one.name}.md")


if __name__ == "__main__":
    main()
