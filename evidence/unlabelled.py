"""What do unlabelled rows of the population add to a few labelled ones, by our likelihood and by every rival?

A *cell* is a data set, a model, a number of labelled rows of each class and a draw, which splits the rows (the patients) at
random: labelled, validation, unlabelled at the population's mix, test. Every method sees the same rows, starts from the same
weights, has the same minibatches, steps, rate and weight decays, and keeps the step that is best on the same validation rows.
Four pages: methods that are told π, with ≤ 200 and with 1,000 labelled of each class; methods that are not told it; and
evidence of π on the unlabelled rows, `unlabelled_evidence=ε`. All of it takes two hours of a core.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from rightloss.shift import estimate_prevalence

from .data_sets import IMAGES, SOURCES, available, describe, load
from .engine import Comparison
from .nets import UNLABELLED, Kind, log_table
from .pages import axes, half_width, interval, table
from .streams import (
    DECAYS,
    FEWEST,
    TESTED,
    Draw,
    Fitted,
    Job,
    at_share,
    fit,
    labelled_of_each,
    of_each,
    parts_of,
    row_likelihood,
    standardised,
    with_decays,
)

SETS = ("Default", "Caravan", "LIDC", "credit", "bank", "TV churn", "sylva", "satimage", "shuttle", "adult", "credit cards",
        *IMAGES)  # fmt: skip
DRAWS, MOST_TESTED, MOST_UNLABELLED = 10, 8_000, 10_000
MOST_VALID = {50: 50, 100: 50, 200: 100, 1000: 250}  # by labelled rows of each class: validation rows of each class
SMALL = 200  # labelled of each class, at most, of the cells that the aim is about
CELL = ["set", "model", "labelled"]
BASE, MATCHED, GUARDED = "logit adjustment", "intercept matched", "ours, guarded"
ROUNDING = 1e-5  # nats: less is no difference
FACTORS = (0.5, 2.0)  # by which a guess of the odds of π is wrong
STREAMS, ONE, THREE = "streams alone", "evidence, ε = 1", "evidence, ε = 3"


class Cell(NamedTuple):
    set: str
    model: Kind
    labelled: int
    draw: int


def cells(sizes: Sequence[int]) -> Iterator[Cell]:
    """Yield the cells that the rows suffice for, small ones first; 100 labelled only if 200 are not available."""
    for size in sizes:
        for name in available(SETS):
            positives = (1 - TESTED) * SOURCES[name].counts[-1]
            fits = {each: positives >= each + valid + FEWEST for each, valid in MOST_VALID.items()}
            if fits[size] and not (size == 100 and fits[200]):
                models: tuple[Kind, ...] = ("ConvNet",) if name in IMAGES else ("linear", "MLP")
                yield from (Cell(name, model, size, draw) for model in models for draw in range(DRAWS))


def draw_of(cell: Cell) -> Draw:
    """Return the draw; test rows share no patient with the others, validation rows none with labelled ones."""
    data, random = load(cell.set), np.random.default_rng(cell.draw)
    test, first, second = parts_of(data.groups, len(data.y), random)
    labelled, valid = of_each(data.y, first, cell.labelled), of_each(data.y, second, MOST_VALID[cell.labelled])
    rest = random.permutation(np.setdiff1d(np.concatenate([first, second]), np.concatenate([labelled, valid])))
    natural = float(data.y.mean())
    unlabelled, test = at_share(data.y, rest, natural, MOST_UNLABELLED), at_share(data.y, test, natural, MOST_TESTED)
    x, y = standardised(data.x, unlabelled), torch.from_numpy(data.y)
    return Draw(x(labelled), y[labelled], x(valid), y[valid], x(unlabelled), x(test), y[test], natural)


# --- methods: which jobs, of which the best on the validation rows is taken, and which figure ---


class Rule(NamedTuple):
    method: str
    settings: tuple[str, ...] = ()
    figure: str = "likelihood"


KNOWN = {
    BASE: Rule("stream", ("0",)),
    "cross-entropy + closed form": Rule("cross-entropy"),
    MATCHED: Rule("stream", ("0",), "matched"),
    "pseudo-labels": Rule("pseudo-labels"),
    "PNU": Rule("PNU"),
    "EM": Rule("EM"),
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
    GUARDED: Rule("stream", ("0", "root")),  # root, or logit adjustment where that is better on the validation rows
    f"{GUARDED}, matched": Rule("stream", ("0", "root"), "matched"),
}
EVIDENCE = {
    BASE: KNOWN[BASE],
    MATCHED: KNOWN[MATCHED],
    STREAMS: Rule("stream", ("batch",)),
    ONE: Rule("evidence", ("1",)),
    THREE: Rule("evidence", ("3",)),
    f"{THREE}, matched": Rule("evidence", ("3",), "matched"),
}
LEARNT = {
    f"ours, π learnt from {words}, {mass}": Rule("unknown", (f"{factor:g} {setting}",))
    for factor, words in zip(FACTORS, ("π/2", "2π"), strict=True)
    for setting, mass in (("1", "equal mass"), ("rows", "rows given"))
}
GUESSES = ("logit adjustment at π/2", "logit adjustment at 2π")
ESTIMATES = (*GUESSES, "estimate_prevalence", "estimate_prevalence, calibrated")


def known_jobs(draw: Draw) -> list[Job]:
    """Return the stream likelihood by the mass λ of the unlabelled rows, and its rivals."""
    pi, ratio = draw.population, draw.ratio
    masses = {"0": 0.0, "0.3": 0.3, "1": 1.0, "3": 3.0, "10": 10.0, "root": math.sqrt(ratio), "rows": ratio}
    jobs = [Job("stream", name, mass, pi) for name, mass in masses.items()]
    jobs += [Job("cross-entropy", "", 0.0, pi), *(Job("paper", f"κ={kappa:g}", kappa, pi) for kappa in (0.0, 1.0))]
    jobs += [Job("PNU", f"{gamma:g}", gamma, pi) for gamma in (-0.5, 0.0, 0.5, 0.9)]
    return jobs + [Job(method, f"{w:g}", w, pi) for method in ("pseudo-labels", "EM") for w in (0.3, 1.0)]


def evidence_jobs(draw: Draw) -> list[Job]:
    """Return logit adjustment, the streams at the weight that the loss takes by itself, and the same with evidence of π."""
    pi, batch = draw.population, UNLABELLED / (2 * labelled_of_each(draw))
    jobs = [Job("stream", "0", 0.0, pi), Job("stream", "batch", batch, pi)]
    return jobs + [Job("evidence", f"{people:g}", people, pi) for people in (1.0, 3.0)]


def unknown_jobs(draw: Draw) -> list[Job]:
    """Return logit adjustment, judged at the labelled mix, and ours, which start at a guess."""
    pi, masses = draw.population, {"1": 1.0, "rows": draw.ratio}
    jobs = [Job("guess", "", 0.0, pi)]
    return jobs + [Job("unknown", f"{f:g} {name}", mass, guess(pi, f)) for f in FACTORS for name, mass in masses.items()]


def guess(population: float, factor: float) -> float:
    """Return the share whose odds are those of π times the factor."""
    odds = factor * population / (1 - population)
    return odds / (1 + odds)


def picked(jobs: Sequence[Job], found: Fitted, rule: Rule) -> int:
    """Return the place of the job that is best on the validation rows among those of the rule."""
    own = [
        place for place, job in enumerate(jobs) if job.method == rule.method and job.setting in (rule.settings or [job.setting])
    ]
    return own[int(found.score[own].argmax())]


def run(jobs_of: Callable[[Draw], list[Job]], rules: dict[str, Rule], cell: Cell) -> list[dict[str, Any]]:
    """Return a row per method that is told π, with the likelihood and the AUC."""
    draw, rows = draw_of(cell), []
    jobs = with_decays(jobs_of(draw), DECAYS[cell.model])
    found = fit(cell.model, draw, jobs, cell.draw)
    sizes = {"population": draw.population, "unlabelled": len(draw.unlabelled), "tested": len(draw.y_test),
             "positives": int(draw.y_test.sum())}  # fmt: skip
    for name, rule in rules.items():
        place = picked(jobs, found, rule)
        figures = {"likelihood": float(getattr(found, rule.figure)[place]), "auc": float(np.float32(found.auc[place]))}
        rows.append({"method": name, **sizes, **figures})
    return rows


def run_unknown(cell: Cell) -> list[dict[str, Any]]:
    """Return a row per method that is not told π, with logit adjustment at π beside them; `share` is what it takes for π."""
    draw = draw_of(cell)
    jobs = with_decays(unknown_jobs(draw), DECAYS[cell.model])
    found, pi = fit(cell.model, draw, jobs, cell.draw), draw.population
    base = picked(jobs, found, Rule("guess"))
    values, shares = estimated(draw, found, base)
    rows = [(BASE, base, float(found.likelihood[base]), pi)]
    rows += [(name, base, value, share) for name, value, share in zip(ESTIMATES, values, shares, strict=True)]
    places = {name: picked(jobs, found, rule) for name, rule in LEARNT.items()}
    rows += [(name, place, float(found.likelihood[place]), float(found.learnt[place])) for name, place in places.items()]
    return [
        {"method": name, "population": pi, "likelihood": value, "auc": float(np.float32(found.auc[place])), "share": share}
        for name, place, value, share in rows
    ]


def estimated(draw: Draw, found: Fitted, place: int) -> tuple[list[float], list[float]]:
    """Return the test log-likelihood of logit adjustment at half and at twice π, and at π estimated afterwards; these shares.

    Estimated on the unlabelled rows from predictions as they are, and calibrated on the validation rows.
    """
    pi, log_odds = draw.population, math.log(draw.population / (1 - draw.population))
    z, others, z_valid = (each[:, place] - log_odds for each in (found.z_test, found.z_unlabelled, found.z_valid))
    held_out = log_table(z_valid), draw.y_valid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few held-out rows, and of none
        plain = estimate_prevalence(log_table(others), 0.5, calibration="assumed", region=None)
        try:
            calibrated = estimate_prevalence(log_table(others), 0.5, held_out=held_out, region=None)
        except ValueError:  # predictions that the held-out labels contradict: take what the message advises
            calibrated = estimate_prevalence(log_table(others), 0.5, method="bbse", held_out=held_out, region=None)
    learnt = [min(max(float(each.population[1]), 1e-4), 1 - 1e-4) for each in (plain, calibrated)]
    used = torch.tensor([*(guess(pi, factor) for factor in FACTORS), *learnt], dtype=torch.float64)
    moved = torch.stack([z + float(each) for each in used.logit()], 1)
    return row_likelihood(moved, draw.y_test).mean(0).tolist(), [pi / 2, 2 * pi, *learnt]


# --- what is stored: a row per cell and method ---


def compared(rows: pd.DataFrame, base: str = BASE) -> pd.DataFrame:
    """Return a row per cell and method: means, and the paired difference to `base` with its standard error."""
    place, keys, figures = rows["set"].map(SETS.index), [*CELL, "draw"], ["likelihood", "auc"]
    rows = rows.assign(place=place).sort_values(["place", "model", "labelled", "draw"], kind="stable")
    others = rows.loc[rows["method"] == base, [*keys, *figures]]
    paired = rows.merge(others, on=keys, suffixes=("", " of the base"), validate="many_to_one")
    groups = paired.groupby([*CELL, "method"], sort=False)
    about = [name for name in ("population", "unlabelled", "tested", "positives") if name in rows]
    found = pd.concat([groups.size().rename("draws"), groups[about].first(), groups[figures].mean()], axis=1)
    for name in figures:
        less = paired.assign(less=paired[name] - paired[f"{name} of the base"]).groupby([*CELL, "method"], sort=False)["less"]
        found[f"{name} −"], found[f"{name} s.e."] = less.mean(), less.sem()
    return found.reset_index()


def ahead(found: pd.DataFrame, sign: int = 1) -> pd.Series:
    """Return whether a method is ahead of its base beyond noise; with −1, behind."""
    return sign * found["likelihood −"] > (2 * found["likelihood s.e."]).clip(lower=ROUNDING)


def counts(found: pd.DataFrame, leave_out: str = BASE) -> str:
    """Return a row per method: in how many cells it is ahead of and behind its base, and by how much on average."""
    sizes = {"50": [50], "100 or 200": [100, 200], f"≤ {SMALL}": [50, 100, 200], "1,000": [1000]}
    groups = {name: found["labelled"].isin(each) for name, each in sizes.items() if found["labelled"].isin(each).any()}
    rows, size = [], f"≤ {SMALL}" if (found["labelled"] <= SMALL).any() else "1,000"
    for name in dict.fromkeys(found["method"]):
        if name in (BASE, leave_out):
            continue
        own = found["method"] == name
        parts = [found[own & each] for each in groups.values()]
        line = [f"**{name}**" if name == f"{GUARDED}, matched" else name]
        line += [f"{ahead(part).sum()} / {ahead(part, -1).sum()} of {len(part)}" for part in parts]
        small = found[own & groups[size]]
        worst = small.loc[small["likelihood −"].idxmin()]
        line += [f"{small['likelihood −'].mean():+.4f}", f"{small['auc −'].mean():+.4f}",
                 f"{_error(worst, 'likelihood')} {worst['set']}, {worst['model']}, {worst['labelled']}"]  # fmt: skip
        rows.append(line)
    figures = ["mean, nats", "mean, AUC", "worst cell ± s.e."]
    return table(["method", *(f"ahead / behind, {name}" for name in groups), *(f"{each}, {size}" for each in figures)], rows)


def _error(row: pd.Series, figure: str) -> str:
    return f"{row[f'{figure} −']:+.4f} ± {row[f'{figure} s.e.']:.4f}"


def verdicts(found: pd.DataFrame) -> str:
    """Return the aim's verdict for a few of our rules, with every small cell that is behind."""
    lines = []
    for name in ("ours, rows given", "ours, root", "ours, equal mass", f"{GUARDED}, matched"):
        own = found[(found["method"] == name) & (found["labelled"] <= SMALL)]
        won, lost = own[ahead(own)], own[ahead(own, -1)]
        where = [f"{row['set']}, {row['model']}, {row['labelled']}: {_error(row, 'likelihood')}" for _, row in lost.iterrows()]
        share = 100 * len(won) / max(len(own), 1)
        line = f"- **{name}**: ahead in {len(won)} of {len(own)} ({share:.0f} %), behind in {len(lost)}"
        lines.append(line + (f" ({'; '.join(where)})." if where else "."))
    return "\n".join(lines)


def by_cell(found: pd.DataFrame, shown: Sequence[str], ranked: str, title: str, sizes: bool) -> str:
    """Return a row per cell: logit adjustment, paired differences to it, and one method's AUC."""
    rows = []
    for key, cell in found.groupby(CELL, sort=False):
        own, first = cell.set_index("method"), cell.iloc[0]
        more = [f"{first['unlabelled']:,}", f"{first['population']:.3f}"] if sizes else []
        base = [f"{own.loc[BASE, 'likelihood']:.4f}", *([f"{own.loc[BASE, 'auc']:.3f}"] if sizes else [])]
        less = own.loc[list(shown), ["likelihood −", "likelihood s.e.", "draws"]].astype({"draws": int}).itertuples(index=False)
        words = [interval(*each) for each in less]
        rows.append([f"{key[0]}, {key[1]}", f"{key[2]:,}", *more, *base, *words, _error(own.loc[ranked], "auc")])
    more = ["unlabelled", "π"] if sizes else []
    return table(["cell", "labelled of each class", *more, BASE, *(["its AUC"] if sizes else []), *shown, title], rows)


SHOWN = (f"{GUARDED}, matched", "ours, root", "ours, rows given", "ours, equal mass", MATCHED, "PNU", "EM")
AGAINST_MATCHED = ("PNU", "EM", "ours, rows given", "ours, root", "ours, root, matched", GUARDED, f"{GUARDED}, matched")


def reduced_known(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    found, against = compared(rows), compared(rows, MATCHED)
    draws = f"{found['draws'].min()} draws or more (draws 0 to {rows['draw'].max()}, each its own seed)"
    pieces = {
        "facts": f"{found.groupby(CELL).ngroups} cells, {draws}.",
        "verdicts": verdicts(found),
        "counts": counts(found),
        "against_matched": counts(against[against["method"].isin(AGAINST_MATCHED)]),
        "by_cell": by_cell(found, SHOWN, SHOWN[0], "AUC, guarded ± s.e.", sizes=True),
    }
    return found, pieces


def reduced_evidence(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    found = compared(rows)
    small, names = found[found["labelled"] <= SMALL], [name for name in EVIDENCE if name != BASE]
    parts = {
        f"all cells with ≤ {SMALL} labelled of each class": small,
        "those that ε was not chosen on": small[small["labelled"] != 50],
    }
    lines = []
    for which, part in parts.items():
        owns = {name: part[part["method"] == name] for name in (THREE, STREAMS)}
        said = [
            f"*{name}* is ahead in {ahead(own).sum()} of {len(own)} and behind in {ahead(own, -1).sum()}"
            for name, own in owns.items()
        ]
        lines.append(f"- Of {which}, {'; '.join(said)}.")
    facts = f"{found.groupby(CELL).ngroups} cells, draws 0 to {rows['draw'].max()}, each its own seed."
    table_of_cells = by_cell(found, names, THREE, "AUC, ε = 3 ± s.e.", sizes=False)
    against = counts(compared(rows, MATCHED).query("method != @BASE"), MATCHED)
    return found, {"facts": facts, "verdicts": "\n".join(lines), "counts": counts(found), "against_matched": against,
                   "by_cell": table_of_cells}  # fmt: skip


def reduced_unknown(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the differences to logit adjustment that is told π, and a table per model."""
    parts = []
    for model in dict.fromkeys(compared(rows)["model"]):
        own = rows[rows["model"] == model]
        sizes = ", ".join(map(str, sorted(own["labelled"].unique())))
        title = f"**{model}**, {own.groupby(CELL).ngroups} cells, {sizes} labelled of each class:"
        parts.append(f"{title}\n\n{_unknown_table(own)}")
    return compared(rows).query("method != @BASE"), {"by_model": "\n\n".join(parts)}


def _unknown_table(rows: pd.DataFrame) -> str:
    """Return a row per method that is not told π, with the aim: no worse than a π that is off by a factor of 2."""
    lines, found = [], compared(rows)
    against = {name: compared(rows, name) for name in GUESSES}
    for name in (*ESTIMATES, *LEARNT):
        own, error = found[found["method"] == name], rows[rows["method"] == name]
        factor = np.exp((np.log(error["share"]) - np.log(error["population"])).abs().median())
        better = []
        for other, each in against.items():
            part = each[each["method"] == name]
            bound = 2 * part["likelihood s.e."]
            up, down = (part["likelihood −"] > bound).sum(), (part["likelihood −"] < -bound).sum()
            better.append("–" if name == other else f"{up} / {down} of {len(part)}")
        lines.append([name, f"{own['likelihood −'].mean():+.4f}", f"{own['likelihood −'].min():+.4f}",
                      f"{own['auc −'].mean():+.4f}", f"{factor:.2f}", *better])  # fmt: skip
    header = ["method", "mean, nats", "worst cell", "mean, AUC", "π off by a factor of (median)",
              "ahead / behind, of the guess π/2", "ahead / behind, of the guess 2π"]  # fmt: skip
    return table(header, lines)


def sources(rows: pd.DataFrame) -> dict[str, str]:
    return {"sources": table(["set", "class 1", "source"], describe(name for name in SOURCES if name in set(rows["set"])))}


def picture(series: dict[str, tuple[str, str]], found: pd.DataFrame) -> Any:
    """Draw the paired differences per cell with 95 % intervals, small cells above, 1,000 labelled below."""
    keys = list(dict.fromkeys(zip(*(found[name] for name in CELL), strict=True)))
    keys.sort(key=lambda key: (key[2] > SMALL, SETS.index(key[0]), key[1], key[2]))
    figure, axis = axes(1, 1, (9, 0.3 * len(keys) + 1.8), 110)
    limit = 0.03
    for place, key in enumerate(keys):
        own = found[(found[CELL] == list(key)).all(axis=1)].set_index("method")
        for order, (name, (colour, marker)) in enumerate(series.items()):
            mean, error, draws = own.loc[name, ["likelihood −", "likelihood s.e.", "draws"]]
            half, y = half_width(error, int(draws)), place + 0.14 * (order - (len(series) - 1) / 2)
            axis.plot(np.clip([mean - half, mean + half], -limit, limit), [y, y], color=colour, lw=1.1)
            shown = marker if abs(mean) < limit else ("<" if mean < 0 else ">")
            label = name if place == 0 else None
            axis.plot(np.clip(mean, -limit, limit), y, label=label, marker=shown, ms=4.2, ls="", color=colour)
        if place % 2:
            axis.axhspan(place - 0.5, place + 0.5, color="black", alpha=0.04, lw=0)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(keys)), [f"{name}, {model}, {labelled:,}" for name, model, labelled in keys], fontsize=8)
    axis.set(ylim=(len(keys) - 0.5, -0.5), xlim=(-1.03 * limit, 1.03 * limit))
    axis.set_xlabel("log-likelihood in the population, difference to logit adjustment, nats (95 %)")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


COLOURED = {
    f"{GUARDED}, matched": ("#0072b2", "o"),
    "ours, root": ("#56b4e9", "D"),
    MATCHED: ("#999999", "s"),
    "PNU": ("#e69f00", "^"),
    "EM": ("#cc79a7", "v"),
}
COLOURED_EVIDENCE = {THREE: ("#0072b2", "o"), STREAMS: ("#d55e00", "D"), MATCHED: ("#999999", "s")}
SIZES = tuple(MOST_VALID)
run_known, run_evidence = partial(run, known_jobs, KNOWN), partial(run, evidence_jobs, EVIDENCE)
known, evidence = partial(picture, COLOURED), partial(picture, COLOURED_EVIDENCE)
COMPARISONS = (
    Comparison("unlabelled", partial(cells, SIZES[:3]), run_known, sources, known, reduced_known),
    Comparison("unlabelled_1000", partial(cells, SIZES[3:]), run_known, draw=known, reduced=reduced_known, folder="unlabelled"),
    Comparison("unlabelled_unknown", partial(cells, SIZES[:3]), run_unknown, reduced=reduced_unknown),
    Comparison("unlabelled_evidence", partial(cells, SIZES), run_evidence, draw=evidence, reduced=reduced_evidence),
)
