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
    "posterior_lidc_features": ("posterior_lidc", "posteriors by the scale of their prior, on the nodules' columns"),
    "posterior_lidc_slabs": ("posterior_lidc", "… of the last layer of a ConvNet"),
    "posterior_logistic": ("posterior_logistic", "means and deviations of one posterior by each method"),
    "posterior_calibration": ("posterior_calibration", "is the corrected posterior calibrated?"),
}
# Settled questions: their pages in docs/benchmarks stand as they are, their scripts in the last commit that has them.
ARCHIVED = {
    ("8bef3b4", "benchmarks/{}.py"): "claim_why unlabelled_harm unlabelled_efficiency unlabelled_shift_test unlabelled_cost "
    "prevalence_estimates forgotten_start label_frequencies boosting lidc_auc auxiliary_marginal posterior_auxiliary "
    "posterior_cost prior_choice toy_fresh_seeds",
    ("302db54", "benchmarks/{}.py"): "lidc_dicom lidc_nets lidc_prepare lidc_views study_speed",
    ("302db54", "-m evidence {}"): "marginal_bias segmentation",
}
THEN = {name: found for found, names in ARCHIVED.items() for name in names.split()}  # name → commit and script


def comparison(name: str) -> engine.Comparison:
    """Return the comparison that makes the page `name`."""
    module = import_module(f"evidence.{COMPARISONS[name][0]}")
    return next(each for each in module.COMPARISONS if each.name == name)


def main() -> None:
    names = "\n".join(f"  {name:24}{words}" for name, (_, words) in COMPARISONS.items())
    names += f"\n\nArchived, with a NAME of these it says how to run it again: {', '.join(THEN)}"
    parser = argparse.ArgumentParser(
        "python -m evidence", description=f"{engine.__doc__}\nComparisons:\n\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", choices=[*COMPARISONS, *THEN], metavar="NAME")
    parser.add_argument("--docs", action="store_true", help="write the page from the stored results, run nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="FIELD=VALUE", help="only the cells with these values")
    parser.add_argument("--engine", choices=("processes", "ray"), default="processes")
    parser.add_argument("--workers", type=int, help="processes; one per processor by default")
    parser.add_argument("--address", help="of a Ray cluster; one on this machine by default")
    options = parser.parse_args()
    if options.name is None:
        return print(names)
    if options.name in THEN:
        commit, script = THEN[options.name]
        return print(f"git worktree add ../then {commit} && cd ../then && python {script.format(options.name)} --docs")
    one = comparison(options.name)
    if options.docs:
        return one.write_page()
    from rightloss.study.engines import OnRay, Processes

    made = OnRay(options.address, options.workers) if options.engine == "ray" else Processes(options.workers)
    folder = engine.execute(one, options.only, made, f"python -m evidence {one.name}")
    print(folder / f"{one.name}.md")


if __name__ == "__main__":
    main()
