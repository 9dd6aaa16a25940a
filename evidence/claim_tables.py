"""Compare the methods of the claim, cell by cell: draws → paired differences → the counts on which a default rests.

Stage: rows per cell, draw, population and method → `Compared` → a `Verdict` of each candidate against the guess, the weighted
loss and the best of its rivals → tables, and rows to store.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binom

from .data_sets import MORE, SOURCES, describe
from .engine import seeds
from .losses import GAIN, LOGIT_ADJUSTED
from .pages import axes, half_width, paired, percent, table

# Settings are chosen on the first half and reported on the second; named before anything was run.
CHOSEN_ON = ("Default", "LIDC", "credit", "bank", "satimage", "hypothyroid", "law", "nursery", "two Gaussians")
REPORTED_ON = ("Caravan", "TV churn", "sylva", "shuttle", "adult", "credit cards", "stop and frisk", "abalone", "fars",
               "curved risk", "LIDC contours", "CT slices")  # fmt: skip
BY_YEAR = ("accidents 2020", "accidents 2021", "employment")  # other people than the labelled: reported apart
SETS, MODELS = (*CHOSEN_ON, *REPORTED_ON, *BY_YEAR), ("linear", "MLP", "boosting", "ConvNet")
SHARES = (0.3, 0.1, 0.01, 1e-3, 1e-4)  # of the class of interest, beside the natural one
SIZES = (50, 200, 1000, 0)  # labelled of each class; 0: all that there are
POSITIVES = ("positives labelled", "as met", "validation", "test")
NEAR = 1.25  # a share within this factor of the natural one is not counted again
ROUNDING = 1e-6  # of the guess's log-likelihood: less is no difference
GUESS = "always π"
CAPPED_LA = f"{LOGIT_ADJUSTED}, capped"
FLATTENED = {  # calibrations that are left out where their slope is above 1
    "affine": LOGIT_ADJUSTED,
    "affine, capped": CAPPED_LA,
    "ensemble, affine, capped": "ensemble, capped",
    "affine, matched, capped": "mean matching, capped",
}
GUARDS = {"": 0.5, ", guess if better": 0.0, ", guess if clearly better": -1.0, ", never the guess": None}
UNLESS_WORSE = (LOGIT_ADJUSTED, "affine", "beta", "pooled, beta", "ensemble, beta", "classifier, auto")
# What each method is: a candidate on labelled rows or with unlabelled ones, a rival, stored, and its place in the picture.
METHODS = pd.read_csv(Path(__file__).with_name("claim_methods.csv"), index_col="method")
CANDIDATES, CANDIDATES_UNLABELLED = (METHODS.index[METHODS["candidate"] == rows] for rows in ("labelled", "unlabelled"))
RIVALS, KEPT = (METHODS.index[METHODS[role] == "yes"] for role in ("rival", "stored"))
PICTURED = list(METHODS["pictured"].dropna().sort_values().index)


@dataclass(frozen=True)
class Compared:
    """A data set, a model, a number of labelled rows and a population, with what every method reached in each draw."""

    set: str
    model: str
    labelled: int  # 0: all
    place: int  # of the population; 0 is the natural one
    share: float
    natural: float  # share of the natural population
    guess: float  # log-likelihood of always answering π
    figures: dict[str, dict[str, np.ndarray]]  # figure → method → draws, as `Scores.add` has them
    positives: tuple[int, ...]  # mean numbers, as in `POSITIVES`
    shift: np.ndarray  # p-values of the test for label shift

    @property
    def likelihood(self) -> dict[str, np.ndarray]:
        return self.figures["likelihood"]

    @property
    def draws(self) -> int:
        return len(self.likelihood[LOGIT_ADJUSTED])

    @property
    def counted(self) -> bool:
        """Return whether the population is not near the natural one, or is it."""
        return self.place == 0 or not 1 / NEAR < self.share / self.natural < NEAR

    def difference(self, method: str, other: str, figure: str = "likelihood") -> tuple[float, float]:
        """Return the mean paired difference and its standard error; ties where rounding may be all."""
        values = self.figures[figure]
        second = np.full(self.draws, self.guess) if other == GUESS else values[other]
        mean, error, _ = paired(values[method] - second)
        return mean, max(error, ROUNDING * abs(self.guess))

    def change(self, method: str, other: str = LOGIT_ADJUSTED) -> float:
        """Return the mean difference in % of the guess's log-loss."""
        return 100 * self.difference(method, other)[0] / -self.guess


def compared(rows: pd.DataFrame) -> list[Compared]:
    """Return every cell and population, with the rules that validation decides."""
    names = [name for name in rows if name in ("likelihood", "auc", "mean", "valid", "slope") or str(name).endswith("_se")]
    natural = rows[rows["place"] == 0].groupby("set")["share"].first()
    found = []
    for key, part in rows.groupby(["set", "model", "labelled", "place"], sort=False):
        wide = {name: part.pivot(index="draw", columns="method", values=name).dropna(axis=1).astype(float) for name in names}
        figures = {str(name): {str(method): own.to_numpy() for method, own in each.items()} for name, each in wide.items()}
        first, by_draw = part.iloc[0], part.groupby("draw")
        positives = tuple(round(float(by_draw[count].first().mean())) for count in POSITIVES)
        share, guess, shift = float(part["share"].mean()), float(first["guess"]), by_draw["shift"].first().to_numpy()
        name, model, labelled, place = key
        own = Compared(name, model, labelled, place, share, float(natural[name]), guess, figures, positives, shift)
        found.append(own)
        add_rules(own)
    return sorted(found, key=lambda c: (SETS.index(c.set), MODELS.index(c.model), c.labelled or 10**9, c.place))


def add_rules(cell: Compared) -> None:
    """Add the methods that are a choice on the validation rows."""
    valid = cell.figures["valid"]
    gains = [name for name in (LOGIT_ADJUSTED, "gain, r = ρ, κ = 0.1", GAIN) if name in valid]
    best = np.argmax([valid[name] for name in gains], axis=0)
    _add(cell, "κ validated", [gains[each] for each in best])
    for suffix in ("", ", smoothed"):
        chosen = _calibrated_unless_worse(cell, suffix)
        for title, errors in GUARDS.items():
            _add(cell, f"auto{title}{suffix}", chosen, errors)
    for name in UNLESS_WORSE:
        if (bounded := f"{name}, smoothed") in valid:
            worse = valid[name] - valid[bounded] > cell.figures["over_own_se"][bounded]
            _add(cell, f"{name}, smoothed unless worse", [name if each else bounded for each in worse])
    for name, plain in FLATTENED.items():
        if name in valid and plain in valid:
            slopes = cell.figures["slope"][name]
            _add(cell, f"{name}, flattening only", [name if each < 1 else plain for each in slopes])


def _calibrated_unless_worse(cell: Compared, suffix: str) -> list[str]:
    """Return for each draw what "auto" took, when this was run, before it compared with the guess."""
    valid, chosen, plain = cell.figures["valid"], [], f"{LOGIT_ADJUSTED}{suffix}"
    for draw in range(cell.draws):
        best = max((f"{name}{suffix}" for name in ("affine", "beta")), key=lambda name: valid[name][draw])
        own = valid[plain][draw]
        sure = own - cell.guess > 2 * cell.figures["over_guess_se"][plain][draw]
        keep = sure and own - valid[best][draw] > cell.figures["over_base_se"][best][draw]
        chosen.append(plain if keep else best)
    return chosen


def _add(cell: Compared, name: str, chosen: Sequence[str], guard: float | None = None) -> None:
    """Add a method that is another one in each draw; the guess where it is not better on validation by `guard` s.e."""
    for values in cell.figures.values():
        values[name] = np.array([values[each][draw] for draw, each in enumerate(chosen)])
    if guard is not None:
        doubtful = cell.figures["valid"][name] - cell.guess < guard * cell.figures["over_guess_se"][name]
        cell.likelihood[name][doubtful] = cell.guess
        cell.figures["mean"][name][doubtful] = cell.share


class Verdict(NamedTuple):
    """What a candidate did in a set of cells: how many there are, and in how many each of the aims was met."""

    cells: int  # that have the candidate
    below_guess: int  # (a) below always answering π by more than two standard errors
    below_weighted: int  # (b) an AUC below the weighted loss's by more than two standard errors
    level: int  # (c) not behind the best rival by more than one standard error
    fair: int  # the same, with the best rival picked on the other half of the draws
    ahead: int  # (d) ahead of every rival by more than one standard error
    won: int  # ahead of logit adjustment by more than two standard errors
    lost: int  # behind it by as much
    gain: float  # median difference to logit adjustment, in % of the guess's log-loss
    auc: float  # mean difference to logit adjustment


def verdict(cells: Sequence[Compared], name: str, rivals: Sequence[str]) -> Verdict:
    """Return the verdict of one candidate."""
    own = [cell for cell in cells if name in cell.likelihood]
    counts, gains, ranks = np.zeros(7, dtype=int), [np.nan] if not own else [], [np.nan] if not own else []
    for cell in own:
        others = [each for each in rivals if each in cell.likelihood and each != name]
        against = {each: cell.difference(name, each) for each in others}
        best = max(others, key=lambda each: float(cell.likelihood[each].mean()))
        over, noise = cell.difference(name, GUESS)
        ranked, ranked_noise = cell.difference(name, "weighted", "auc")
        plain, plain_noise = cell.difference(name, LOGIT_ADJUSTED)
        counts += [over < -2 * noise, ranked < -2 * ranked_noise, against[best][0] >= -against[best][1],
                   _is_level_with_best(cell, name, others), all(mean > error for mean, error in against.values()),
                   plain > 2 * plain_noise, plain < -2 * plain_noise]  # fmt: skip
        gains.append(cell.change(name))
        ranks.append(cell.difference(name, LOGIT_ADJUSTED, "auc")[0])
    return Verdict._make([len(own), *counts.tolist(), float(np.median(gains)), float(np.mean(ranks))])


def _is_level_with_best(cell: Compared, name: str, others: Sequence[str]) -> bool:
    """Return whether a method is level with the best rival, picked for each half of the draws on the other half."""
    values = np.stack([cell.likelihood[each] for each in others])
    even, differences = np.arange(cell.draws) % 2 == 0, np.empty(cell.draws)
    for half in (even, ~even):
        best = values[:, ~half].mean(axis=1).argmax()
        differences[half] = (cell.likelihood[name] - values[best])[half]
    mean, error, _ = paired(differences)
    return mean >= -error


# --- tables ---

SITUATIONS: dict[str, tuple[bool, Callable[[Compared], bool]]] = {
    "labelled only": (False, lambda cell: True),
    "labelled only, linear": (False, lambda cell: cell.model == "linear"),
    "labelled only, MLP": (False, lambda cell: cell.model == "MLP"),
    "labelled only, boosting": (False, lambda cell: cell.model == "boosting"),
    "labelled only, 50 of each class": (False, lambda cell: cell.labelled == 50),
    "labelled only, 200 or more": (False, lambda cell: cell.labelled != 50),
    "labelled only, π ≥ 0.1": (False, lambda cell: cell.share >= 0.1),
    "labelled only, π ≤ 0.01": (False, lambda cell: cell.share <= 0.01),
    "and unlabelled, linear or MLP": (True, lambda cell: "unlabelled, guarded" in cell.likelihood),
    "and unlabelled, boosting": (True, lambda cell: cell.model == "boosting" and "mean matching" in cell.likelihood),
}
HEADER = ["candidate", "cells", "(a) below π", "(b) AUC below weighted", "(c) level with the best rival",
          "picked on other draws", "(d) ahead of all rivals", "median, %", "ahead / behind, of logit adjustment", "AUC",
          "chosen on: (c), (d), below π"]  # fmt: skip


class Situation:
    """The cells of a situation by halves of the sets, what may be chosen, and what that is compared with."""

    def __init__(self, all_cells: Iterable[Compared], title: str) -> None:
        self.unlabelled, where = SITUATIONS[title]
        own = [cell for cell in all_cells if cell.counted and where(cell)]
        self.half, self.rest = ([cell for cell in own if cell.set in sets] for sets in (CHOSEN_ON, REPORTED_ON))
        self.names = (*CANDIDATES, *CANDIDATES_UNLABELLED) if self.unlabelled else CANDIDATES
        self.rivals = (*RIVALS, "mean matching") if self.unlabelled else RIVALS

    def complete(self, part: Sequence[Compared]) -> dict[str, Verdict]:
        """Return the verdicts of the candidates that nearly all cells have."""
        own = [name for name in self.names if sum(name in cell.likelihood for cell in part) >= 0.95 * len(part) > 0]
        return {name: verdict(part, name, self.rivals) for name in own}

    def chosen(self) -> str:
        """Return the candidate that is below the guess in the fewest cells, within 2 % of them, and then level in the most."""
        found = self.complete(self.half)
        least = min(each.below_guess for each in found.values()) + 0.02 * len(self.half)
        return max((name for name in found if found[name].below_guess <= least), key=lambda name: found[name].level)

    def verdicts(self, names: Sequence[str]) -> str:
        """Return a row per candidate, counted on the half that nothing was chosen on; the other half in the last column."""
        rows = []
        for name in names:
            own, half = (verdict(part, name, self.rivals) for part in (self.rest, self.half))
            if own.cells:
                chosen = f"{percent(half.level, half.cells)}, {percent(half.ahead, half.cells)}, {half.below_guess}"
                rows.append([name, *counts_of(own), f"{own.won} / {own.lost}", f"{own.auc:+.4f}", chosen])
        return table(HEADER, rows)


def counts_of(own: Verdict) -> list[str]:
    shares = [percent(each, own.cells) for each in (own.level, own.fair, own.ahead)]
    return [str(own.cells), str(own.below_guess), str(own.below_weighted), *shares, f"{own.gain:+.2f}"]


def when(all_cells: Sequence[Compared]) -> str:
    """Return a row per situation: what is chosen on one half of the sets, and what it does on the other."""
    rows = []
    for title in SITUATIONS:
        one = Situation(all_cells, title)
        if one.half and one.rest:
            name = one.chosen()
            for shown in dict.fromkeys((name, "mean matching" if one.unlabelled else LOGIT_ADJUSTED)):
                own, mark = verdict(one.rest, shown, one.rivals), "**" if shown == name else ""
                if own.cells:
                    rows.append([title if mark else "", f"{mark}{shown}{mark}", *counts_of(own)])
    return table(["there is", "chosen, and beside it", *HEADER[1:8]], rows)


def answer(all_cells: Sequence[Compared]) -> str:
    """Return the aims' verdict for what the first half chose, with labelled rows alone and with unlabelled ones."""
    lines = ["The aims: (a) and (b) in every cell, (c) in 80 %, (d) in 20 %. On the sets that nothing was chosen on:", ""]
    for title, which in (("Labelled rows alone", "labelled only"), ("With unlabelled rows", "and unlabelled, linear or MLP")):
        one = Situation(all_cells, which)
        if not one.half or not one.rest:
            continue
        name, found = one.chosen(), one.complete(one.rest)
        own, best = verdict(one.rest, name, one.rivals), max(found, key=lambda each: found[each].level)
        other = found[best]
        lines.append(
            f"- **{title}**: the first half chooses *{name}*. Of {own.cells} cells it is below always answering π in "
            f"{own.below_guess}, has a lower AUC than the weighted loss in {own.below_weighted}, is level with the best rival "
            f"in {percent(own.level, own.cells)} and ahead of all in {percent(own.ahead, own.cells)}. In hindsight *{best}* is "
            f"level most often: {percent(other.level, other.cells)}, ahead of all in {percent(other.ahead, other.cells)}, "
            f"below π in {other.below_guess}."
        )
    return "\n".join(lines)


def missed(part: Sequence[Compared]) -> str:
    """Return why the aims are missed: which rivals are best, and where the AUC is below the weighted loss's."""
    best = Counter(
        max((name for name in RIVALS if name in cell.likelihood), key=lambda name: float(cell.likelihood[name].mean()))
        for cell in part
    )
    shares = "; ".join(f"*{name}* {percent(count, len(part))}" for name, count in best.most_common())
    lower = [cell for cell in part for mean, error in [cell.difference("affine", "weighted", "auc")] if mean < -2 * error]
    cells = ", ".join(dict.fromkeys(f"{cell.set} ({cell.model}, {cell.labelled or 'all'})" for cell in lower)) or "none"
    return (
        f"Why (c) is missed: no rival is best everywhere, and whoever is compared with the best of all, picked afterwards, "
        f"is behind it by chance as well (the column *picked on other draws* has that removed). The best rival is {shares}. "
        f"Why (b) is missed: calibration leaves the AUC of logit adjustment as it is, which is below that of the weighted loss "
        f"in {cells}."
    )


def smoothing_effect(own: Sequence[Compared]) -> str:
    """Return in a sentence by how much smoothing changes some methods, where it matters."""
    lines = []
    for name, how in itertools.product((LOGIT_ADJUSTED, "beta", "pooled, beta"), ("smoothed", "smoothed unless worse")):
        found = [(cell.change(f"{name}, {how}", name), cell) for cell in own if f"{name}, {how}" in cell.likelihood]
        better, worse = ([cell.set for change, cell in found if sign * change > 1] for sign in (1, -1))
        sets = [", ".join(dict.fromkeys(each)) or "none" for each in (better, worse)]
        ends = [pick(found, key=lambda each: each[0]) for pick in (max, min)]
        best, worst = (
            f"{change:+.0f} % ({c.set}, {c.model}, {c.labelled or 'all'} labelled, π = {c.share:.2g})" for change, c in ends
        )
        lines.append(
            f"- *{name}, {how}*: better in {len(better)} of {len(found)} cells by more than 1 % of the log-loss of answering π "
            f"({sets[0]}), at best {best}; worse in {len(worse)} ({sets[1]}), at worst {worst}."
        )
    return "\n".join(lines)


def classifier_methods(counted: Sequence[Compared]) -> str:
    """Return a row per model and method of the corrected classifier: differences to "auto"."""
    base, rows = "classifier, auto", []
    for model in ("linear", "boosting"):
        own = [cell for cell in counted if cell.model == model and base in cell.likelihood]
        for title in ("closed form", "affine", "beta", "auto, smoothed", "smoothing auto") if own else ():
            name = f"classifier, {title}"
            found, changes = [cell.difference(name, base) for cell in own], [cell.change(name, base) for cell in own]
            ahead, behind = (sum(sign * mean > 2 * error for mean, error in found) for sign in (1, -1))
            over = {each: [cell.difference(each, GUESS) for cell in own] for each in (name, base)}
            below = [sum(mean < -2 * noise for mean, noise in each) for each in over.values()]
            figures = [f"{np.median(changes):+.2f}", f"{min(changes):+.1f} to {max(changes):+.1f}", f"{ahead} / {behind}"]
            rows.append([model, title, str(len(own)), *figures, f"{below[0]} (auto: {below[1]})"])
    return table(["model", "method", "cells", "difference to auto, %: median", "range", "ahead / behind", "below π"], rows)


def by_model(all_cells: Sequence[Compared]) -> str:
    """Return a row per method: mean difference to logit adjustment in 10⁻³ nats over cells, by model and population."""
    columns: dict[str, list[Compared]] = {}
    for model, (place, name) in itertools.product(MODELS, {0: "natural", 3: "0.01", 4: "0.001"}.items()):
        own = [cell for cell in all_cells if (cell.model, cell.place) == (model, place) and cell.set not in BY_YEAR]
        columns |= {f"{model}, {name}": own} if own else {}
    rows = []
    for name in PICTURED:
        line = []
        for own in columns.values():
            found = [1000 * cell.difference(name, LOGIT_ADJUSTED)[0] for cell in own if name in cell.likelihood]
            mean, error, count = paired(found) if len(found) > 1 else (0.0, 0.0, 0)
            line.append(f"{mean:+.2g} ± {half_width(error, count):.2g}" if count else "–")
        rows.append([name, *line])
    return table(["10⁻³ nats", *(f"{title} ({len(own)})" for title, own in columns.items())], rows)


def slopes(all_cells: Sequence[Compared]) -> str:
    """Return the median slope that a calibration gives logit adjustment, and its mean prediction over π, by model and rows."""
    rows = []
    for model, size in itertools.product(MODELS, SIZES):
        own = [cell for cell in all_cells if (cell.model, cell.labelled) == (model, size) and cell.set not in BY_YEAR]
        if own:
            slope = np.concatenate([cell.figures["slope"]["affine"] for cell in own if cell.place == 0])
            factor = [float(np.median(c.figures["mean"][LOGIT_ADJUSTED] / c.share)) for c in own if c.place == 4]
            steep = percent(int((slope < 1).sum()), len(slope))
            rows.append([model, f"{size:,}" if size else "all", f"{np.median(slope):.2f}", steep, f"{np.median(factor):.2f}"])
    return table(["model", "labelled of each class", "median slope", "below 1 in", "mean prediction / π at 0.001"], rows)


def by_year(all_cells: Sequence[Compared]) -> str:
    """Return a row per set by year: what the test for label shift says, and differences to logit adjustment."""
    names = ("natural rows", "weighted", "affine", "mean matching", "unlabelled, guarded, matched")
    rows = []
    for cell in all_cells:
        if cell.set in BY_YEAR and cell.place == 0:
            differences = [cell.difference(name, LOGIT_ADJUSTED) for name in names if name in cell.likelihood]
            over = cell.difference(LOGIT_ADJUSTED, GUESS)
            passed = f"{int((cell.shift >= 0.05).sum())} of {cell.draws}" if np.isfinite(cell.shift).all() else "–"
            rows.append([f"{cell.set}, {cell.model}", f"{cell.share:.3f}", passed, f"{over[0]:+.4f} ± {over[1]:.4f}",
                         *(f"{mean:+.4f} ± {error:.4f}" for mean, error in differences)])  # fmt: skip
    header = ["set, model", "π", "label shift tenable (p ≥ 0.05)", "logit-adjusted over always π ± s.e.", *names]
    return table(header, rows)


def ran(all_cells: Sequence[Compared]) -> str:
    """Return how many sets have been run, by model and rows."""
    found = Counter((cell.model, cell.labelled) for cell in all_cells if cell.place == 0)
    rows = [[model, *(str(found[model, size]) if found[model, size] else "–" for size in SIZES)] for model in MODELS]
    return table(["sets run", *(f"{size:,} of each class" if size else "all" for size in SIZES)], rows)


def reduced(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a row per cell, population and method, its difference to logit adjustment, and the pieces that need the draws."""
    every = compared(rows)
    counted = [cell for cell in every if cell.counted]
    apart = [cell for cell in counted if cell.set not in BY_YEAR]
    streams, trees = (Situation(every, f"and unlabelled, {each}") for each in ("linear or MLP", "boosting"))
    runs = {(cell.set, cell.model, cell.labelled) for cell in every}
    facts = f"{len(runs)} sets × models × sizes of {len({name for name, *_ in runs})} sets, {len(counted)} cells with their "
    shown = (LOGIT_ADJUSTED, *CANDIDATES_UNLABELLED)
    pieces = {
        "facts": f"{facts}populations, {every[0].draws} draws each (seeds {seeds(rows)}).",
        "answer": answer(every), "missed": missed([cell for cell in counted if cell.set in REPORTED_ON]),
        "labelled": Situation(every, "labelled only").verdicts(CANDIDATES), "smoothing": smoothing_effect(apart),
        "unlabelled": streams.verdicts(shown), "boosting": trees.verdicts(shown), "when": when(every),
        "classifier": classifier_methods(apart), "by_model": by_model(every), "slopes": slopes(every),
        "by_year": by_year(every), "ran": ran(every),
    }  # fmt: skip
    return as_rows(every), pieces


def as_rows(every: Iterable[Compared]) -> pd.DataFrame:
    rows = []
    for cell in every:
        shared = {
            "set": cell.set, "model": cell.model, "labelled": cell.labelled, "share": cell.share,
            "natural": int(cell.place == 0), "draws": cell.draws, **dict(zip(POSITIVES, cell.positives, strict=True)),
            GUESS: cell.guess, "its AUC": float(cell.figures["auc"][LOGIT_ADJUSTED].mean()),
        }  # fmt: skip
        for name in KEPT:
            if name in cell.likelihood:
                mean, error = cell.difference(name, LOGIT_ADJUSTED)
                rows.append({**shared, "method": name, "difference": mean, "s.e.": error})
    return pd.DataFrame(rows)


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return where the sets come from, and which were chosen on."""
    sets = [name for name in SOURCES if name in set(rows["set"])]
    return {
        "sources": table(["set", "class 1", "source"], describe(name for name in sets if name not in MORE)),
        "more": table(["set", "last class", "source"], describe(name for name in sets if name in MORE)),
        "chosen_on": ", ".join(CHOSEN_ON), "reported_on": ", ".join(REPORTED_ON),
    }  # fmt: skip


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return a 95 % interval of the median by order statistics (the range of few values), with the median between its ends."""
    ordered = np.sort(values)
    place = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return float(ordered[place]), float(np.median(ordered)), float(ordered[len(ordered) - 1 - place])


def draw(rows: pd.DataFrame) -> Any:
    """Draw each method's median difference to logit adjustment by model and population, with 95 % intervals over cells."""
    rows = rows[~rows["set"].isin(BY_YEAR)]
    models = [model for model in MODELS[:3] if model in set(rows["model"])]
    limits = {"natural": 0.04, "= 0.01": 0.012, "= 0.001": 0.003}
    figure, grid = axes(len(models), 3, (11, 3.7 * len(models) + 0.8), 100, sharey=True, squeeze=False)
    for line, model in zip(grid, models, strict=True):
        for axis, (title, limit) in zip(line, limits.items(), strict=True):
            at = rows["natural"] == 1 if title == "natural" else (rows["share"] == float(title[2:])) & (rows["natural"] == 0)
            own = rows[at & (rows["model"] == model)]
            for y, name in enumerate(PICTURED):
                found = own.loc[own["method"] == name, "difference"].to_numpy()
                if len(found) < 2:
                    continue
                low, mean, high = median_interval(found)
                needs = any(word in name for word in ("matching", "unlabelled"))
                colour = "#d55e00" if needs else "#009e73" if "smooth" in name else "#0072b2"
                axis.plot(np.clip(found, -limit, limit), np.full(len(found), y), "|", color="#999999", ms=7, mew=0.9)
                axis.plot(np.clip([low, high], -limit, limit), [y, y], color=colour, lw=2)
                marker = "o" if abs(mean) < limit else "<" if mean < 0 else ">"
                axis.plot(np.clip(mean, -limit, limit), y, marker=marker, color=colour, ms=5)
            axis.axvline(0, color="black", lw=0.8)
            axis.set(xlim=(-1.05 * limit, 1.05 * limit), title=f"{model}, π {title}")
            axis.set_yticks(range(len(PICTURED)), PICTURED, fontsize=8)
            axis.tick_params(axis="x", labelsize=8)
            axis.grid(axis="x", alpha=0.3)
    grid[0, 0].invert_yaxis()
    label = "log-likelihood in the population, difference to logit adjustment, nats: median over cells (95 %), each cell a tick"
    figure.supxlabel(f"{label}; green: smoothed; orange: needs unlabelled rows", fontsize=9)
    return figure
