"""Write the page of benchmarks/corrections.py.

Stage: a JSON per set and split → a table of means and paired differences → corrections.md, corrections.csv, corrections.png.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from data_sets import describe
from report import table
from scipy.stats import t as student

OURS = ("auto", "InformationGainClassifier")
RIVALS = ("closed form", "affine", "beta", "mean matching", "sigmoid", "isotonic")
LABELLED = tuple(name for name in RIVALS if name != "mean matching")
MODEL, CELL = ["base", "training"], ["set", "rare"]
HOW = f"""
- At most 4,000 rows are trained on and 12,000 tested, the latter weighted by class to π. Patients of LIDC are never split.
- The settings of every model are chosen by five-fold cross-validation on the training rows, from the same grid for all: C;
  leaves and rounds; fewest rows in a leaf.
- A *cell* is a set, a prevalence and a trained model. The *best* is the highest mean in the cell among {", ".join(RIVALS)},
  known only afterwards. *Regret* is the distance to it in % of the loss of always answering π.
- Intervals are 95 %, by Student's t, of differences paired by split; splits of one set share rows, so they are somewhat narrow.
  *Within noise*: the interval of the difference reaches 0.
- Sigmoid and isotonic are scikit-learn's `CalibratedClassifierCV(ensemble=False)`, moved from the training mix to π by the
  closed form; *as is* is not moved. Mean matching sees up to 5,000 test rows at π, without labels; auto does not.
- Rivals' probabilities of exactly 0 or 1 are replaced by 1/(2 (n + 1)) and its complement: their log-likelihood would be −∞.

"""
NOTHING = """
### Ours minus doing nothing, nats

Doing nothing: the same base, tuned alike, trained on all rows and left as it is. At 0.001 it is wrong by the shift.

"""
SET_HEADER = ["set", "rows", "columns", "positives", "share", "positive", "source and licence"]
FIGURES = ["log_likelihood", "auc", "slope", "intercept", "ratio"]


def read(folder: Path) -> pd.DataFrame:
    """Return a row per set, split, population and method."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        counts = {"train_positives": result["train"][1], "test_positives": result["test"][1]}
        parts.append(pd.DataFrame(result["rows"]).assign(set=result["set"], split=result["split"], **counts))
    if not parts:
        raise ValueError(f"Expected results in {folder}, but there are none: run `python benchmarks/corrections.py` first.")
    rows = pd.concat(parts, ignore_index=True)
    rows["rare"] = rows["population"] == 1e-3
    rows["ratio"] = rows["seconds"] / rows["base_seconds"].where(rows["base_seconds"] > 0)
    return rows


def paired(a: pd.Series, b: pd.Series) -> tuple[float, float, float]:
    """Return the mean of a − b over the splits, and its 95 % limits by Student's t."""
    difference = (a - b).dropna()
    mean, size = float(difference.mean()), len(difference)
    if size < 2:
        return mean, float("-inf"), float("inf")
    margin = float(student.ppf(0.975, size - 1) * difference.std(ddof=1) / np.sqrt(size))
    return mean, mean - margin, mean + margin


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell and method: means over splits, and paired differences to always answering π and to the best.

    A cell is a set, a prevalence and a trained model (base and training). `best` is the correction with the highest mean
    log-likelihood there, known only afterwards.
    """
    found = []
    for (name, rare), cell in rows.groupby(CELL, sort=False):
        by_split = cell.pivot_table("log_likelihood", "split", [*MODEL, "correction"])
        guess = by_split["none", "", "always π"]
        means = cell.groupby([*MODEL, "correction"], sort=False)
        chosen = means["chosen"].agg(lambda values: ", ".join(f"{k} {n}" for k, n in values.value_counts().items() if k))
        figures = means[FIGURES].mean()
        shared = {"set": name, "rare": rare, "population": cell["population"].iloc[0], "splits": len(by_split)}
        shared |= {key: cell[key].mean().round() for key in ("train_positives", "test_positives")}
        for (base, training, correction), values in figures.iterrows():
            own = by_split[base, training, correction]
            row = shared | {"base": base, "training": training, "correction": correction} | dict(values)
            row |= {"chosen": chosen[base, training, correction], "entropy": -float(guess.mean())}
            row |= dict(zip(("over_guess", "over_guess_low", "over_guess_high"), paired(own, guess), strict=True))
            for label, names in (("best", RIVALS), ("labelled", LABELLED)):
                rivals = [key for key in by_split if key[:2] == (base, training) and key[2] in names]
                if rivals:
                    best = max(rivals, key=lambda key: by_split[key].mean())
                    limits = (f"to_{label}", f"to_{label}_low", f"to_{label}_high")
                    row |= {label: best[2]} | dict(zip(limits, paired(own, by_split[best]), strict=True))
            found.append(row)
    return pd.DataFrame(found)


def share(values: pd.Series) -> str:
    return f"{int(values.sum())} of {len(values)} ({100 * values.mean():.0f} %)"


def interval(mean: float, low: float, high: float, digits: int = 5) -> str:
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def at(row: pd.Series) -> str:
    return f"{row['set']} at {row['population']:.3g}"


def verdicts(cells: pd.DataFrame) -> str:
    """Return the two verdicts, with every cell that misses them."""
    lines = ["### Verdicts", ""]
    for name in OURS:
        own = cells[cells["correction"] == name]
        worse = own[own["over_guess_high"] < 0]
        lines.append(
            f"- **{name}** is worse than always answering π, beyond noise, in {share(own['over_guess_high'] < 0)} cells."
        )
        lines += [f"    - {at(row)}, {row['base']} {row['training']}: {_over_guess(row)}" for _, row in worse.iterrows()]
    own = cells[cells["correction"] == "auto"]
    missed = own[own["to_best_high"] < 0]
    lines.append(f"- **auto** is within noise of the best correction in {share(own['to_best_high'] >= 0)} cells.")
    lines.append(
        f"- Without mean matching, which needs unlabelled rows of the population, in {share(own['to_labelled_high'] >= 0)}."
    )
    if len(missed):
        header = ["cell", "model", "auto chose", "best", "auto − best, nats", "% of always answering π"]
        rows = [
            [at(row), f"{row['base']} {row['training']}", row["chosen"], row["best"],
             interval(row["to_best"], row["to_best_low"], row["to_best_high"]), f"{100 * row['to_best'] / row['entropy']:+.2f}"]
            for _, row in missed.iterrows()
        ]  # fmt: skip
        lines += ["", "Where auto is not within noise of the best:", "", table(header, rows)]
    return "\n".join(lines) + "\n"


def _over_guess(row: pd.Series) -> str:
    return interval(row["over_guess"], row["over_guess_low"], row["over_guess_high"])


def head_to_head(cells: pd.DataFrame) -> str:
    """Return a row per correction, over all cells."""
    rows = []
    for rare, words in ((False, "natural"), (True, "0.001")):
        for name in ("as is", "sigmoid as is", "isotonic as is", *RIVALS, "auto"):
            own = cells[(cells["correction"] == name) & (cells["rare"] == rare)]
            regret = -100 * own["to_best"] / own["entropy"]
            rows.append(
                [words, f"**{name}**" if name == "auto" else name, f"{100 * (own['to_best_high'] >= 0).mean():.0f} %",
                 f"{regret.mean():.2f}", f"{regret.max():.1f}", str(int((own["over_guess_high"] < 0).sum())),
                 f"{(own['slope'] - 1).abs().median():.2f}", f"{own['intercept'].abs().median():.2f}",
                 f"{own['ratio'].median():.1f}"]
            )  # fmt: skip
    header = ["π", "correction", "within noise of the best", "mean regret, %", "worst regret, %", "cells below always π",
              "median abs. slope − 1", "median abs. intercept", "fit time / one fit"]  # fmt: skip
    return table(header, rows)


def by_model(cells: pd.DataFrame) -> str:
    """Return the mean regret of each correction by model, at both prevalences."""
    rows = []
    names = [*RIVALS, "auto"]
    for (base, training), part in cells[cells["correction"].isin(names)].groupby(MODEL, sort=False):
        for rare, words in ((False, "natural"), (True, "0.001")):
            own = part[part["rare"] == rare].assign(regret=lambda each: -100 * each["to_best"] / each["entropy"])
            mean = own.groupby("correction")["regret"].mean()
            within = (own.loc[own["correction"] == "auto", "to_best_high"] >= 0).mean()
            rows.append([f"{base}, {training}", words, *(f"{mean[name]:.2f}" for name in names), f"{100 * within:.0f} %"])
    return table(["model", "π", *RIVALS, "**auto**", "auto within noise"], rows)


def by_set(cells: pd.DataFrame) -> str:
    """Return the expected log-likelihood by set: doing nothing, auto around the plain models, and ours."""
    rows = []
    for (name, _), cell in cells.groupby(CELL, sort=False):
        value = cell.set_index([*MODEL, "correction"])["log_likelihood"]
        first = cell.iloc[0]
        top = cell.loc[cell["log_likelihood"].idxmax()]
        plain = [
            f"{value[base, 'plain', what]:.5f}" for what in ("as is", "auto") for base in ("logistic", "LightGBM", "forest")
        ]
        best = f"{top['log_likelihood']:.5f} {top['base']} {top['training']}, {top['correction']}"
        counts = [f"{first['train_positives']:.0f}", f"{first['test_positives']:.0f}"]
        rows.append([name, f"{first['population']:.3g}", *counts, f"{value['none', '', 'always π']:.5f}", *plain,
                     f"{value['logistic', 'ours', OURS[1]]:.5f}", best])  # fmt: skip
    header = ["set", "π", "positives trained", "tested", "always π", "do nothing: logistic", "LightGBM", "forest",
              "auto: logistic", "LightGBM", "forest", "InformationGain", "best of all"]  # fmt: skip
    return table(header, rows)


def against_nothing(rows: pd.DataFrame) -> str:
    """Return paired differences of ours to training on all rows and doing nothing, by set."""
    lines = []
    pairs = {
        "auto, logistic": (("logistic", "plain", "auto"), ("logistic", "plain", "as is")),
        "auto, LightGBM": (("LightGBM", "plain", "auto"), ("LightGBM", "plain", "as is")),
        "auto, forest": (("forest", "plain", "auto"), ("forest", "plain", "as is")),
        "InformationGain − logistic": (("logistic", "ours", OURS[1]), ("logistic", "plain", "as is")),
    }
    for (name, _), cell in rows.groupby(CELL, sort=False):
        by_split = cell.pivot_table("log_likelihood", "split", [*MODEL, "correction"])
        differences = [interval(*paired(by_split[a], by_split[b]), digits=4) for a, b in pairs.values()]
        lines.append([name, f"{cell['population'].iloc[0]:.3g}", *differences])
    return table(["set", "π", *pairs], lines)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw the skill against always answering π by set, with intervals over the splits."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series = {
        "do nothing (LightGBM)": (("LightGBM", "plain", "as is"), "#999999", "x"),
        "isotonic (LightGBM balanced)": (("LightGBM", "balanced", "isotonic"), "#e69f00", "s"),
        "closed form (forest balanced)": (("forest", "balanced", "closed form"), "#cc79a7", "v"),
        "auto (forest balanced)": (("forest", "balanced", "auto"), "#882255", "^"),
        "auto (LightGBM balanced)": (("LightGBM", "balanced", "auto"), "#0072b2", "o"),
        "InformationGainClassifier": (("logistic", "ours", OURS[1]), "#009e73", "D"),
    }
    lowest, names = -40.0, list(dict.fromkeys(rows["set"]))
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.62 * len(names) + 1.6), sharey=True, layout="constrained")
    for axis, rare in zip(axes, (False, True), strict=True):
        for place, name in enumerate(names):
            cell = rows[(rows["set"] == name) & (rows["rare"] == rare)]
            by_split = cell.pivot_table("log_likelihood", "split", [*MODEL, "correction"])
            guess = by_split["none", "", "always π"]
            for order, (label, (key, colour, marker)) in enumerate(series.items()):
                mean, low, high = (100 * each / -guess.mean() for each in paired(by_split[key], guess))
                y = place + 0.12 * (order - 2.5)
                if mean < lowest:
                    axis.plot(lowest, y, marker="<", color=colour, ms=5)
                    axis.annotate(f"{mean:.0f}", (lowest, y), (5, -3), textcoords="offset points", fontsize=6.5, color=colour)
                else:
                    axis.plot([max(low, lowest), high], [y, y], color=colour, lw=1.2)
                    axis.plot(mean, y, marker=marker, color=colour, ms=4.5, ls="")
                if place == 0:
                    axis.plot([], [], marker=marker, color=colour, ls="", ms=5, label=label)
        axis.axvline(0, color="black", lw=0.8)
        axis.set(xlim=(lowest - 3, 103), title="at a prevalence of 0.001" if rare else "at the set's own prevalence")
        axis.set_xlabel("log-likelihood above always answering π, % of what is possible")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_csv(cells: pd.DataFrame, path: Path) -> None:
    """Write every cell and method, rounded; `±` is half the width of a 95 % interval."""
    small = cells[cells["correction"] != "closed form by hand"].copy()
    for name in ("over_guess", "to_best"):
        small[f"{name} ±"] = (small[f"{name}_high"] - small[f"{name}_low"]) / 2
    columns = [
        "set",
        "population",
        *MODEL,
        "correction",
        *FIGURES,
        "over_guess",
        "over_guess ±",
        "to_best",
        "to_best ±",
        "chosen",
    ]
    small[columns].to_csv(path, index=False, float_format="%.3g", lineterminator="\n")


def write_page(results: Path, out: Path) -> None:
    """Write corrections.md, .csv and .png into `out` from the results that there are."""
    rows = read(results)
    cells = compared(rows)
    splits = rows.groupby("set")["split"].nunique()
    fewest = "" if splits.min() == splits.max() else f" ({splits.min()} of some)"
    parts = [
        f"Made by `python benchmarks/corrections.py`: {len(splits)} sets × 2 prevalences × {splits.max()} splits{fewest}.\n",
        HOW, verdicts(cells), "\n### Corrections, over all models and sets\n\n", head_to_head(cells),
        "\n### Mean regret by model, %\n\n", by_model(cells),
        "\n### Expected log-likelihood by set\n\n", by_set(cells),
        NOTHING, against_nothing(rows),
        "\n### The sets\n\n", table(SET_HEADER, describe()),
    ]  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write_csv(cells, out / "corrections.csv")
    draw(rows, out / "corrections.png")
    (out / "corrections.md").write_text("".join(parts))
    print(verdicts(cells))
