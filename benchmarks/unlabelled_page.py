"""Write the page of unlabelled.py from its stored results: tables, cells as CSV, a picture; trains nothing.

Stage: npz per cell and draw → rows (cell, draw, method) → paired differences to logit adjustment → Markdown, CSV, PNG.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from data_sets import SOURCES
from report import ROOT, table
from scipy.stats import t as student
from unlabelled_harm import DRAWS as HARM_DRAWS
from unlabelled_harm import EVIDENCE

CELL = ["set", "model", "labelled"]
SMALL = 200  # labelled of each class, at most, of the cells that the aim is about
BASE = "logit adjustment"
ROUNDING = 1e-5  # nats: less is no difference
ORDER = ("Default", "Caravan", "LIDC", "credit", "bank", "TV churn", "sylva", "satimage", "shuttle", "adult", "credit cards",
         "LIDC contours", "CT slices")  # fmt: skip


class Rule(NamedTuple):
    """How a method's result is read: which jobs, of which the best on the validation rows is taken, and which figure."""

    method: str
    settings: tuple[str, ...] = ()
    figure: str = "likelihood"


OURS = {
    "ours, rows given": Rule("stream", ("rows",)),
    "ours, equal mass": Rule("stream", ("1",)),
    "ours, λ = 0.3": Rule("stream", ("0.3",)),
    "ours, λ = 3": Rule("stream", ("3",)),
    "ours, λ = 10": Rule("stream", ("10",)),
    "ours, root": Rule("stream", ("root",)),
    "ours, λ validated": Rule("stream"),
    "ours, root, matched": Rule("stream", ("root",), "matched"),
    "gain at r = π, κ = 1": Rule("paper", ("κ=1",)),
    "gain at r = π, κ = 0": Rule("paper", ("κ=0",)),
}
RIVALS = {
    BASE: Rule("stream", ("0",)),
    "cross-entropy + closed form": Rule("cross-entropy"),
    "intercept matched": Rule("stream", ("0",), "matched"),
    "pseudo-labels": Rule("pseudo-labels"),
    "PNU": Rule("PNU"),
    "EM": Rule("EM"),
}
GUARDED = "ours, guarded"
MATCHED = "intercept matched"
AGAINST_MATCHED = ("PNU", "EM", "ours, rows given", "ours, root", "ours, root, matched", GUARDED, f"{GUARDED}, matched")
BLIND = {
    f"ours, π learnt from {words}, {mass}": Rule("unknown", (f"{factor} {setting}",))
    for factor, words in (("0.5", "π/2"), ("2", "2π"))
    for setting, mass in (("1", "equal mass"), ("rows", "rows given"))
}
ESTIMATES = ("logit adjustment at π/2", "logit adjustment at 2π", "estimate_prevalence", "estimate_prevalence, calibrated")

HOW = """
- A *draw* puts 40 % of the rows (patients) into the test part. From the rest come the labelled rows, equally many of each
  class, validation rows (50 of each class, 100 beside 200 labelled, 250 beside 1,000), and up to 10,000 unlabelled rows at the
  population's mix. If 200 of a class are not available, there are 100. Columns are standardised by the unlabelled rows.
- Linear: logistic regression. MLP: 64 hidden units. ConvNet: three layers of stride 4, 2, 2 with 8, 16, 32 channels, on
  32 × 32 pixels: a CT slice, or three planes through the majority's outline. All are trained by Adam for 300 steps of at most
  64 + 64 labelled and 256 unlabelled rows, the step size rising for a third of them and then falling. Every method has the same
  start, minibatches and two weight decays (one for the ConvNet); step and decay are those of the best validation
  log-likelihood, weighted to π.
- *Ours* is `LogitAdjustedLoss(prevalence, unlabelled_weight=λ)`, called with `unlabelled=`: *rows given* λ = N_u/n, *equal
  mass* λ = 1, *root* λ = √(N_u/n), *validated* the best of 0, 0.3, 1, 3, 10, root and rows on the same validation rows.
  *Guarded* is root, or logit adjustment where that is better on the validation rows: two fits. *Matched*: the intercept is
  moved afterwards until the mean prediction on the unlabelled rows is π. Guarded, matched was chosen among some forty such
  rules on the tables with 50 labelled of each class, before those with 100 and 200 were run: the latter are its test.
- *Gain at r = π* is the paper's form with the unlabelled rows as the marginal, `reference=prevalence.population`.
- *Cross-entropy + closed form* has the same path as logit adjustment from this start, up to rounding. *Intercept
  matched*: logit adjustment, moved until the mean prediction on the unlabelled rows is π. *Pseudo-labels*: hard labels by the
  present model at π, weight 0.3 or 1, brought in between 20 and 50 % of the steps (Lee 2013). *EM*: soft labels, renewed every
  30 steps, moved until their mean is π; the same weights. *PNU* (Sakai et al. 2017): logistic loss, non-negative corrections
  (Kiryo et al. 2017), γ of −0.5, 0, 0.5, 0.9. Weights and γ are chosen on the validation rows.
- Differences are paired by draw; *ahead* and *behind* mean beyond two standard errors; intervals are 95 %, by Student's t.
  Draws of a set share rows, so both are somewhat narrow.
- What was set after looking: step sizes, decays, the PNU grid and the number of validation rows, after two trial runs (Default,
  LIDC, satimage, bank; 50 labelled; up to six draws), in the first of which logit adjustment stopped too early and our gains
  looked several times larger. How π is learnt is the best of three ways tried on six of the draws below (Default, LIDC,
  satimage, bank, adult).
"""


def read(folder: Path, part: str) -> Iterator[tuple[dict[str, object], dict[str, np.ndarray]]]:
    """Yield the cell and draw of every stored result, and its arrays."""
    for path in sorted((folder / part).glob("*.npz")):
        found = re.fullmatch(r"(.*)-(linear|MLP|ConvNet)-(\d+)-(\d+)", path.stem)
        assert found is not None
        name, model, labelled, draw = found.groups()
        with np.load(path, allow_pickle=False) as arrays:
            yield {"set": name.replace("_", " "), "model": model, "labelled": int(labelled), "draw": int(draw)}, dict(arrays)


def pick(arrays: dict[str, np.ndarray], rule: Rule) -> int:
    """Return the place of the job that is best on the validation rows among those of the rule."""
    jobs = arrays["jobs"]
    places = [
        place for place, job in enumerate(jobs) if job[0] == rule.method and (not rule.settings or job[1] in rule.settings)
    ]
    return places[int(arrays["score"][places].argmax())]


def guarded(arrays: dict[str, np.ndarray]) -> int:
    """Return the place of ours at the root weight, or of logit adjustment if that is better on the validation rows."""
    return max((pick(arrays, rule) for rule in (OURS["ours, root"], RIVALS[BASE])), key=lambda place: arrays["score"][place])


def rows_of(folder: Path, part: str = "known", rules: dict[str, Rule] | None = None) -> pd.DataFrame:
    """Return a row per cell, draw and method, with the likelihood and the AUC, of methods that are told π."""
    rows = []
    for cell, arrays in read(folder, part):
        places = {name: (pick(arrays, rule), rule.figure) for name, rule in (rules or {**RIVALS, **OURS}).items()}
        if rules is None:
            places |= {GUARDED: (guarded(arrays), "likelihood"), f"{GUARDED}, matched": (guarded(arrays), "matched")}
        sizes = dict(zip(("rows", "valid", "unlabelled", "tested", "positives"), arrays["sizes"].tolist(), strict=True))
        for name, (place, figure) in places.items():
            figures = {"likelihood": float(arrays[figure][place]), "auc": float(arrays["auc"][place])}
            kept = {"setting": str(arrays["jobs"][place][1]), "step": int(arrays["step"][place])}
            rows.append({**cell, **sizes, "population": float(arrays["population"]), "method": name, **figures, **kept})
    return _sorted(pd.DataFrame(rows))


def blind_rows_of(folder: Path) -> pd.DataFrame:
    """Return the same of methods that are not told π, with logit adjustment at π beside them."""
    rows = []
    for cell, arrays in read(folder, "unknown"):
        base = pick(arrays, Rule("guess"))
        found = [(BASE, float(arrays["likelihood"][base]), float(arrays["auc"][base]), float(arrays["population"]))]
        half, twice, plain, calibrated, *shares = arrays["estimates"][base].tolist()
        population = float(arrays["population"])
        told = (population / 2, 2 * population, *shares)
        for name, value, share in zip(ESTIMATES, (half, twice, plain, calibrated), told, strict=True):
            found.append((name, value, float(arrays["auc"][base]), share))
        for name, rule in BLIND.items():
            place = pick(arrays, rule)
            found.append(
                (name, float(arrays["likelihood"][place]), float(arrays["auc"][place]), float(arrays["learnt"][place]))
            )
        for name, value, auc, share in found:
            figures = {"likelihood": value, "auc": auc, "share": share}
            rows.append({**cell, "population": float(arrays["population"]), "method": name, **figures})
    return _sorted(pd.DataFrame(rows)) if rows else pd.DataFrame()


def _sorted(rows: pd.DataFrame) -> pd.DataFrame:
    place = rows["set"].map({name: place for place, name in enumerate(ORDER)})
    return rows.assign(place=place).sort_values(["place", "model", "labelled", "draw"], kind="stable").drop(columns="place")


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cells with at least ten draws."""
    return rows[rows.groupby(CELL)["draw"].transform("nunique") >= 10] if len(rows) else rows


def compared(rows: pd.DataFrame, base: str = BASE) -> pd.DataFrame:
    """Return a row per cell and method: means, and the paired difference to `base` with its standard error."""
    found = []
    for key, cell in rows.groupby(CELL, sort=False):
        if cell["draw"].nunique() < 3:
            continue
        wide = {figure: cell.pivot(index="draw", columns="method", values=figure) for figure in ("likelihood", "auc")}
        first = cell.iloc[0]
        for name in dict.fromkeys(cell["method"]):
            row = {**dict(zip(CELL, key, strict=True)), "method": name, "draws": len(wide["auc"])}
            row |= {each: first[each] for each in ("population", "unlabelled", "tested", "positives") if each in cell}
            for figure, values in wide.items():
                difference = values[name] - values[base]
                error = difference.std(ddof=1) / np.sqrt(len(difference))
                row |= {figure: values[name].mean(), f"{figure} −": difference.mean(), f"{figure} s.e.": error}
            found.append(row)
    return pd.DataFrame(found)


def ahead(cells: pd.DataFrame) -> pd.Series:
    return cells["likelihood −"] > (2 * cells["likelihood s.e."]).clip(lower=ROUNDING)


def behind(cells: pd.DataFrame) -> pd.Series:
    return -cells["likelihood −"] > (2 * cells["likelihood s.e."]).clip(lower=ROUNDING)


def counts(cells: pd.DataFrame) -> str:
    """Return a row per method: in how many cells it is ahead of and behind logit adjustment, and by how much on average."""
    sizes = {"50": [50], "100 or 200": [100, 200], f"≤ {SMALL}": [50, 100, 200], "1,000": [1000]}
    groups = {name: cells["labelled"].isin(each) for name, each in sizes.items() if cells["labelled"].isin(each).any()}
    rows, size = [], f"≤ {SMALL}" if (cells["labelled"] <= SMALL).any() else "1,000"
    for name in dict.fromkeys(cells["method"]):
        if name == BASE:
            continue
        own = cells["method"] == name
        line = [f"**{name}**" if name == f"{GUARDED}, matched" else name]
        line += [
            f"{ahead(part).sum()} / {behind(part).sum()} of {len(part)}"
            for part in (cells[own & each] for each in groups.values())
        ]
        small = cells[own & groups[size]]
        worst = small.loc[small["likelihood −"].idxmin()]
        line += [f"{small['likelihood −'].mean():+.4f}", f"{small['auc −'].mean():+.4f}",
                 f"{_error(worst, 'likelihood')} {worst['set']}, {worst['model']}, {worst['labelled']}"]  # fmt: skip
        rows.append(line)
    figures = ["mean, nats", "mean, AUC", "worst cell ± s.e."]
    return table(["method", *(f"ahead / behind, {name}" for name in groups), *(f"{each}, {size}" for each in figures)], rows)


def verdicts(cells: pd.DataFrame) -> str:
    """Return the aim's verdict for a few of our rules, with every small cell that is behind."""
    lines = [
        f"The aim, with ≤ {SMALL} labelled of each class: ahead of logit adjustment in half of the cells, behind in none.",
        "",
    ]
    for name in ("ours, rows given", "ours, root", "ours, equal mass", f"{GUARDED}, matched"):
        own = cells[(cells["method"] == name) & (cells["labelled"] <= SMALL)]
        won, lost = own[ahead(own)], own[behind(own)]
        which = "; ".join(
            f"{row['set']}, {row['model']}, {row['labelled']}: {_error(row, 'likelihood')}" for _, row in lost.iterrows()
        )
        line = f"- **{name}**: ahead in {len(won)} of {len(own)} ({100 * len(won) / len(own):.0f} %), behind in {len(lost)}"
        lines.append(f"{line}{f' ({which})' if which else ''}.")
    return "\n".join(lines) + "\n\n"


def _error(row: pd.Series, figure: str) -> str:
    return f"{row[f'{figure} −']:+.4f} ± {row[f'{figure} s.e.']:.4f}"


def interval(mean: float, error: float, draws: int) -> str:
    half = student.ppf(0.975, draws - 1) * error
    mark = "**" if abs(mean) > 2 * error else ""
    return f"{mark}{mean:+.4f}{mark} ({mean - half:+.4f} to {mean + half:+.4f})"


def _cell(row: pd.Series) -> str:
    return interval(row["likelihood −"], row["likelihood s.e."], row["draws"])


SHOWN = ("ours, guarded, matched", "ours, root", "ours, rows given", "ours, equal mass", "intercept matched", "PNU", "EM")


def by_cell(cells: pd.DataFrame) -> str:
    """Return a row per cell: its size, logit adjustment, and paired differences to it."""
    rows = []
    for key, cell in cells.groupby(CELL, sort=False):
        own = cell.set_index("method")
        first, base = cell.iloc[0], own.loc[BASE]
        differences = [_cell(own.loc[name]) for name in SHOWN]
        gain = own.loc["ours, guarded, matched"]
        auc = _error(gain, "auc")
        rows.append([f"{key[0]}, {key[1]}", f"{key[2]:,}", f"{first['unlabelled']:,}", f"{first['population']:.3f}",
                     f"{base['likelihood']:.4f}", f"{base['auc']:.3f}", *differences, auc])  # fmt: skip
    header = ["cell", "labelled of each class", "unlabelled", "π", BASE, "its AUC", *SHOWN, "AUC, guarded ± s.e."]
    return table(header, rows)


def blind_table(cells: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return a row per method that is not told π, with the aim: no worse than a π that is off by a factor of 2."""
    lines = []
    wide = cells.pivot(index=CELL, columns="method", values="likelihood −")
    for name in dict.fromkeys(cells["method"]):
        if name == BASE:
            continue
        own = cells[cells["method"] == name]
        error = (
            np.log(rows.loc[rows["method"] == name, "share"]) - np.log(rows.loc[rows["method"] == name, "population"])
        ).abs()
        better = [_against(rows, name, guess) for guess in ESTIMATES[:2]]
        lines.append([name, f"{wide[name].mean():+.4f}", f"{wide[name].min():+.4f}", f"{own['auc −'].mean():+.4f}",
                      f"{np.exp(error.median()):.2f}", *better])  # fmt: skip
    header = ["method", "mean, nats", "worst cell", "mean, AUC", "π off by a factor of (median)",
              "ahead / behind, of the guess π/2", "ahead / behind, of the guess 2π"]  # fmt: skip
    return table(header, lines)


def _against(rows: pd.DataFrame, name: str, other: str) -> str:
    if name == other:
        return "–"
    up = down = 0
    for _, cell in rows.groupby(CELL, sort=False):
        wide = cell.pivot(index="draw", columns="method", values="likelihood")
        difference = wide[name] - wide[other]
        bound = 2 * difference.std(ddof=1) / np.sqrt(len(difference))
        up, down = up + int(difference.mean() > bound), down + int(difference.mean() < -bound)
    return f"{up} / {down} of {rows.groupby(CELL).ngroups}"


def harm_table(path: Path) -> str:
    """Return a row per shift: logit adjustment, and the difference of each weight to it."""
    rows, lines = pd.read_csv(path), []
    rows = rows[rows["draw"] < rows["model"].map(HARM_DRAWS)]
    names = {"1": "equal mass", "root": "root", "rows": "rows given", EVIDENCE: EVIDENCE}
    for key, part in rows.groupby(["data", "model", "direction", "shift", "used"], sort=False, dropna=False):
        wide, auc = (part.pivot(index="draw", columns="weight", values=figure) for figure in ("likelihood", "auc"))
        wide.columns, auc.columns = wide.columns.astype(str), auc.columns.astype(str)
        data, model, direction, shift, used = key
        differences = [wide[name] - wide["0"] for name in names]
        cells = [interval(each.mean(), each.std(ddof=1) / np.sqrt(len(each)), len(each)) for each in differences]
        ranked = auc["rows"] - auc["0"]
        cells.append(f"{ranked.mean():+.4f} ± {ranked.std(ddof=1) / np.sqrt(len(ranked)):.4f}")
        where = "" if np.isnan(shift) else f"{shift:g}"
        lines.append([f"{data}, {model}", direction, where, used, str(len(wide)), f"{wide['0'].mean():.4f}", *cells])
    header = ["data, model", "direction", "shift, s.d.", "used", "draws", BASE, *names.values(), "AUC, rows given ± s.e."]
    return table(header, lines)


SERIES = {
    "ours, guarded, matched": ("#0072b2", "o"),
    "ours, root": ("#56b4e9", "D"),
    "intercept matched": ("#999999", "s"),
    "PNU": ("#e69f00", "^"),
    "EM": ("#cc79a7", "v"),
}


def draw(cells: pd.DataFrame, path: Path, series: dict[str, tuple[str, str]] = SERIES) -> None:
    """Draw the paired differences per cell with 95 % intervals, small cells above, 1,000 labelled below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    keys = list(dict.fromkeys(zip(*(cells[name] for name in CELL), strict=True)))
    keys.sort(key=lambda key: (key[2] > SMALL, ORDER.index(key[0]), key[1], key[2]))
    figure, axis = plt.subplots(figsize=(9, 0.3 * len(keys) + 1.8), layout="constrained")
    limit = 0.03
    for place, key in enumerate(keys):
        own = cells[(cells[CELL] == list(key)).all(axis=1)].set_index("method")
        for order, (name, (colour, marker)) in enumerate(series.items()):
            mean, error, draws = own.loc[name, ["likelihood −", "likelihood s.e.", "draws"]]
            half, y = student.ppf(0.975, draws - 1) * error, place + 0.14 * (order - (len(series) - 1) / 2)
            axis.plot(np.clip([mean - half, mean + half], -limit, limit), [y, y], color=colour, lw=1.1)
            shown: dict[str, Any] = {
                "marker": marker if abs(mean) < limit else ("<" if mean < 0 else ">"),
                "ms": 4.2,
                "ls": "",
                "color": colour,
            }
            axis.plot(np.clip(mean, -limit, limit), y, label=name if place == 0 else None, **shown)
        if place % 2:
            axis.axhspan(place - 0.5, place + 0.5, color="black", alpha=0.04, lw=0)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(keys)), [f"{name}, {model}, {labelled:,}" for name, model, labelled in keys], fontsize=8)
    axis.set(ylim=(len(keys) - 0.5, -0.5), xlim=(-1.03 * limit, 1.03 * limit))
    axis.set_xlabel("log-likelihood in the population, difference to logit adjustment, nats (95 %)")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def sources(names: list[str]) -> str:
    """Return where the data come from, for the sets used."""
    rows = [[name, SOURCES[name].positive, SOURCES[name].origin] for name in names if name in SOURCES]
    pixels = "Armato et al., Med. Phys. 38:915, 2011; TCIA LIDC-IDRI (CC BY 3.0)"
    images = {
        "LIDC contours": ["malignant", f"the readers' outlines, which come with the package; {pixels}"],
        "CT slices": ["malignant", f"{pixels}; slices collected by mtzig/LIDC_GDRO (MIT); not shipped, `--slices`"],
    }
    rows += [[name, *images[name]] for name in names if name in images]
    return table(["set", "class 1", "source"], rows)


def summary(folder: Path) -> str:
    """Return the counts of all methods, of what is stored."""
    return counts(compared(rows_of(folder)))


def write_page(results: Path, out: Path, large: bool = False) -> None:
    """Write unlabelled.md, .csv and .png into `out` from the results that there are; with `large`, unlabelled_1000.*"""
    rows = complete(rows_of(results))
    rows = rows[(rows["labelled"] > SMALL) == large]
    cells, name = compared(rows), "unlabelled_1000" if large else "unlabelled"
    parts = [
        f"{_made('unlabelled.py', '--docs --sizes 1000' if large else '--docs')}: {cells.groupby(CELL).ngroups} cells, "
        f"{cells['draws'].min()} draws or more (draws 0 to {rows['draw'].max()}, each its own seed).\n",
        "" if large else HOW, "\n### Ahead of and behind logit adjustment\n\n", "" if large else verdicts(cells), counts(cells),
        "\nThe same against *intercept matched*, the strongest rival, which has the unlabelled rows, too:\n\n",
        counts(compared(rows, MATCHED).query("method in @AGAINST_MATCHED")),
        "\n### By cell\n\nDifferences to logit adjustment in nats, with 95 % intervals; bold beyond two standard errors.\n\n",
        by_cell(cells),
    ]  # fmt: skip
    if not large:
        parts += ["\n### The sets\n\n", sources([name for name in ORDER if name in set(rows["set"])])]
    out.mkdir(parents=True, exist_ok=True)
    cells.to_csv(out / f"{name}.csv", index=False, float_format="%.4g", lineterminator="\n")
    draw(cells, out / f"{name}.png")
    (out / f"{name}.md").write_text("".join(parts), encoding="utf-8")


def write_unknown(results: Path, out: Path) -> None:
    """Write unlabelled_unknown.md and .csv, of the methods that are not told π, by model."""
    rows = complete(blind_rows_of(results))
    parts = [f"{_made('unlabelled.py', '--docs --parts unknown')}.\n", BLIND_TEXT]
    for model, own in rows.groupby("model", sort=False):
        sizes = ", ".join(map(str, sorted(own["labelled"].unique())))
        parts.append(f"\n**{model}**, {own.groupby(CELL).ngroups} cells, {sizes} labelled of each class:\n\n")
        parts.append(blind_table(compared(own), own))
    compared(rows).query("method != @BASE").to_csv(
        out / "unlabelled_unknown.csv", index=False, float_format="%.4g", lineterminator="\n"
    )
    (out / "unlabelled_unknown.md").write_text("".join(parts), encoding="utf-8")


def write_harm(results: Path, out: Path) -> None:
    """Write unlabelled_harm.md and .png from the results of unlabelled_harm.py."""
    draw_harm(results, out / "unlabelled_harm.png")
    page = f"{_made('unlabelled_harm.py', '--docs')}.\n{HARM_TEXT}{harm_table(results)}"
    (out / "unlabelled_harm.md").write_text(page, encoding="utf-8")


def draw_harm(results: Path, path: Path) -> None:
    """Draw the difference to logit adjustment by the size of the shift, for shifts along the classes and across them."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = pd.read_csv(results).query("data == 'Gaussian'")
    rows["weight"] = rows["weight"].astype(str)
    figure, axes = plt.subplots(2, 2, figsize=(8, 6), sharex=True, sharey=True, layout="constrained")
    for (used, direction), axis in zip(
        [(u, d) for u in ("here", "there") for d in ("along", "across")], axes.flat, strict=True
    ):
        own = rows[rows["direction"].isin(["none", direction]) & ((rows["used"] == used) | (rows["direction"] == "none"))]
        for model, dashes in {"linear": "-", "MLP": "--"}.items():
            wide = own[own["model"] == model].pivot(index=["shift", "draw"], columns="weight", values="likelihood")
            for weight, (name, colour) in HARM_SERIES.items():
                by_shift = (wide[weight] - wide["0"]).groupby("shift").agg(["mean", "sem"])
                axis.errorbar(by_shift.index, by_shift["mean"], 2 * by_shift["sem"], color=colour, ls=dashes, marker="o", ms=4,
                              capsize=2, label=f"{name}, {model}")  # fmt: skip
        where = "labelled" if used == "here" else "unlabelled"
        axis.set_title(f"moved {direction} the classes;\nused where the {where} rows are from", fontsize=9)
        axis.axhline(0, color="black", lw=0.8)
        axis.grid(alpha=0.25)
    figure.supxlabel("shift of the unlabelled rows within each class, standard deviations")
    figure.supylabel("gain over logit adjustment, nats (± 2 s.e.)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _made(script: str, options: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return f"Made by `python benchmarks/{script}`, then `{options}`, at commit {commit.stdout.strip()}"


BLIND_TEXT = """
Differences to logit adjustment that is told π. A guess is off by a factor of 2 in the odds of π, both ways. *Ours* starts at
the same guess, and learns π: `Prevalence.unknown`. `estimate_prevalence` gets the predictions of logit adjustment on the
unlabelled rows, as they are or calibrated on the validation rows. Validation is at the labelled mix, half and half, which
needs no π.

"""
HARM_SERIES = {
    "1": ("equal mass", "#56b4e9"),
    "rows": ("rows given", "#d55e00"),
    EVIDENCE: ("ε = 3", "#0072b2"),
}
HARM_TEXT = """
Differences to logit adjustment in nats, with 95 % intervals; bold beyond two standard errors.

*Gaussian*: ten columns, classes two standard deviations apart along the first, π = 0.1, 50 labelled of each class, 5,000
unlabelled, which are moved within each class by the shift, along that column or across it. Used *there*: test rows are moved as
well; *here*: they are not. *CT slices*: labelled are scans of one maker (GE), unlabelled and test those of the others, and the
reverse; no patient is in two parts. *ε = 3*: `unlabelled_evidence=3` at the weight of the minibatch, 256 rows to 100.

"""
