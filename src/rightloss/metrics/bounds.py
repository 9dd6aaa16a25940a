"""Low and high of every figure, by resampling or by differentiation.

Stage: `Problem` → `Ends` of each quantity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import averages as within
from . import ranks
from .figures import FIGURES, State, calibration_gaps
from .intervals import Spread, bca, bca_moved, folded, jittered, normal, percentiles, resamples, unseen_share
from .problem import Key, Problem

Ends = tuple[float, float, str]  # low, high, and why there is none, or what to beware of

_MOST_UNDEFINED = 0.05  # share of resamples in which a figure may be undefined and still have an interval
_MOST_DRAWN = 1 << 23  # numbers in the table of drawn decisions
_FEWEST_GROUPS, _FEW, _HANGING = 5, 10, 5.0


def bounds(problem: Problem, bootstrap: bool, level: float, draws: int, generator: torch.Generator) -> dict[Key, Ends]:
    """Each quantity's interval: of decisions from draws of their shares, of the rest in one of the two ways."""
    slopes = _slopes(problem)
    make = _by_resampling if bootstrap else _by_differentiation
    ends = make(problem, slopes, level, draws, generator)
    drawn = problem.design.clusters is None and problem.sample.num_classes**2 * draws <= _MOST_DRAWN
    if drawn:
        ends |= _of_drawn_decisions(problem, level, draws, generator)
    examples = problem.design.clusters_of_each(problem.sample.labels, problem.sample.num_classes)
    return {key: _noted(problem, key, slopes[key], examples, each, drawn, level) for key, each in ends.items()}


@dataclass(frozen=True)
class _Slope:
    """What the derivative of a quantity says: see `Spread.summary`; and the classes that it depends on."""

    error: float
    lean: float
    hangs_on: float
    classes: list[int]


def _by_resampling(
    problem: Problem, slopes: dict[Key, _Slope], level: float, draws: int, generator: torch.Generator
) -> dict[Key, Ends]:
    """BCa; each resample is also taken at a prevalence of its own where that is uncertain."""
    sample, state = problem.sample, problem.state
    uncertain = sample.prevalence.is_uncertain
    numbers = sample.num_classes * state.averages.recipe.size
    parts, parts_moved = [], []
    for counts in resamples(problem.design, draws, numbers, generator):
        width = counts.shape[1]
        averages = within.averages(sample, state.averages.recipe, counts)
        areas = ranks.areas(sample, problem.rankings, counts) if problem.rankings else state.areas
        parts.append(problem.stacked(State(averages, areas, state.population), width))
        if uncertain:
            population = sample.prevalence.sample(width, generator).T
            parts_moved.append(problem.stacked(State(averages, areas, population), width))
    table = torch.cat(parts, 1)
    moved = torch.cat(parts_moved, 1) if uncertain else table
    ends: dict[Key, Ends] = {}
    for key, row, row_moved in zip(problem.quantities, table, moved, strict=True):
        value = problem.values[key]
        finite = torch.isfinite(row) & torch.isfinite(row_moved)
        fine, fine_moved = row[finite], row_moved[finite]
        if len(fine) < (1 - _MOST_UNDEFINED) * draws:
            ends[key] = (math.nan, math.nan, f"undefined in {1 - len(fine) / draws:.0%} of the resamples")
            continue
        if key[0] == "calibration_error":
            low, high = _around_calibration_error(problem, slopes[key].error, fine_moved if uncertain else None, level)
        elif not uncertain:
            low, high = bca(fine, value, slopes[key].lean, level)
        elif _agree(fine, value):
            low, high = percentiles(fine_moved, (1 - level) / 2, (1 + level) / 2)
        else:
            low, high = bca_moved(fine, fine_moved, value, slopes[key].lean, level)
        ends[key] = (low, high, "")
    return ends


def _by_differentiation(
    problem: Problem, slopes: dict[Key, _Slope], level: float, draws: int, generator: torch.Generator
) -> dict[Key, Ends]:
    """The delta method, on a scale without the figure's bounds; an uncertain prevalence is drawn."""
    moved = None
    if problem.sample.prevalence.is_uncertain:
        population = problem.sample.prevalence.sample(draws, generator).T
        moved = problem.stacked(replace(problem.state, population=population), draws)
    noise = torch.randn(draws, dtype=torch.float64, generator=generator)
    ends: dict[Key, Ends] = {}
    for number, key in enumerate(problem.quantities):
        value, error, limits = problem.values[key], slopes[key].error, FIGURES[key[0]].bounds
        row = None if moved is None else moved[number]
        if key[0] == "calibration_error":
            low, high = _around_calibration_error(problem, error, row, level)
        elif row is None:
            low, high = normal(value, error, level, limits)
        else:
            low, high = percentiles(jittered(row, noise, value, error, limits), (1 - level) / 2, (1 + level) / 2)
        ends[key] = (low, high, "")
    return ends


def _of_drawn_decisions(problem: Problem, level: float, draws: int, generator: torch.Generator) -> dict[Key, Ends]:
    """Figures of decisions, from each class's shares drawn from their posterior: Dirichlet(counts + 1/K), Jeffreys' for two.

    Counts near 0 or n are what resampling is worst at: it never draws the mistake that was not met.
    """
    state, k = problem.state, problem.sample.num_classes
    counts = (state.confusion * state.averages.totals[:, None]).nan_to_num()
    gamma = torch._standard_gamma((counts + 1 / k).expand(k, k, draws).contiguous(), generator=generator)
    drawn = replace(state, decided=gamma / gamma.sum(1, keepdim=True))
    if problem.sample.prevalence.is_uncertain:
        drawn = replace(drawn, population=problem.sample.prevalence.sample(draws, generator).T)
    ends: dict[Key, Ends] = {}
    for key, formula in problem.quantities.items():
        if FIGURES[key[0]].of_decisions:
            ends[key] = (*percentiles(formula(drawn).expand(draws), (1 - level) / 2, (1 + level) / 2), "")
    return ends


def _slopes(problem: Problem) -> dict[Key, _Slope]:
    """By the gradient of every quantity in the class means and areas."""
    state, design = problem.state, problem.design
    plain = state.averages.means[..., 0].nan_to_num()
    spreads = {key: Spread(design) for key in problem.quantities}
    by_mean: dict[Key, within.Gradient] = {}
    by_total, by_area, classes = {}, {}, {}
    for key, found in _gradients(problem).items():
        of_means, by_total[key], by_area[key] = (each[..., 0].nan_to_num() for each in found)
        if (gradient := within.Gradient.of(of_means, plain)) is not None:
            by_mean[key] = gradient
        used = of_means.any(1) | by_area[key].any(0) | by_area[key].any(1)
        classes[key] = torch.nonzero(used).flatten().tolist()
    per_example = 1 / state.averages.totals[:, 0]
    for block in within.blocks(problem.sample, state.averages.recipe):
        for key, gradient in by_mean.items():
            added = gradient.contributions(block) * per_example[block.labels]
            if design.clusters is not None:  # then the mix of the classes varies, too
                added += by_total[key][block.labels] * (1 if block.votes is None else block.votes)
            spreads[key].add(block.entries, added)
    for key, of_areas in by_area.items():
        if bool(of_areas.any()):
            added = ranks.contributions(problem.sample, problem.rankings, of_areas, state.areas[..., 0])
            spreads[key].add(slice(None), added * per_example[problem.sample.labels])
    return {key: _Slope(*each.summary(), classes[key]) for key, each in spreads.items()}


@torch.inference_mode(False)
@torch.enable_grad()
def _gradients(problem: Problem) -> dict[Key, tuple[Tensor, ...]]:
    """The gradient of every quantity in the class means, totals and areas, whatever mode the caller is in.

    Of copies, since autograd keeps no tensor that was made in inference mode.
    """
    state = problem.state
    means, totals, areas = (
        each.clone().requires_grad_() for each in (state.averages.means, state.averages.totals, state.areas)
    )
    recipe = replace(state.averages.recipe, costs=state.averages.recipe.costs.clone())
    live = State(within.Averages(recipe, means, totals), areas, state.population.clone())
    return {
        key: torch.autograd.grad(formula(live).sum(), (means, totals, areas), allow_unused=True, materialize_grads=True)
        for key, formula in problem.quantities.items()
    }


def _around_calibration_error(
    problem: Problem, error: float, at_population: Tensor | None, level: float
) -> tuple[float, float]:
    """As `folded` has it; farther out by what an uncertain prevalence does to the value."""
    parts = len(problem.state.averages.recipe.edges)
    gaps = calibration_gaps(problem.state)[:, 0]
    low, high = folded(gaps / parts, _calibration_noise(problem) / parts, error, level)
    if at_population is None:
        return low, high
    value = problem.values["calibration_error", None]
    least, most = percentiles(at_population, (1 - level) / 2, (1 + level) / 2)
    return max(value - math.hypot(value - low, value - least), 0.0), value + math.hypot(high - value, most - value)


def _calibration_noise(problem: Problem) -> Tensor:
    """Standard error of each bin's gap if the model is right, (j·e,).

    Σ_c (π_c²/n_c) Var(p_j − 1{c = j} in the bin | c). A class's mean there is M/π_c, with M = E[p_j (1 − p_j) in the bin] for j
    and, together, for the rest; taken together, which is exact for two classes and leaves a little too much for more.
    """
    state, k = problem.state, problem.sample.num_classes
    squares, products = (
        (state.population[:, None] * each).sum(0)[:, 0] for each in (state.averages.squares, state.averages.products)
    )
    totals = state.averages.totals[[1] if k == 2 else slice(None), 0]
    per_example = 1 / totals + 1 / (state.averages.totals.sum() - totals)
    bins = state.averages.recipe.bins
    return (squares - products.square() * per_example.repeat_interleave(bins)).clamp_min(0).sqrt()


def _noted(problem: Problem, key: Key, slope: _Slope, examples: Tensor, ends: Ends, drawn: bool, level: float) -> Ends:
    """Ends that reach as far as what was not met allows; none where there is nothing to make them from."""
    of_decisions = FIGURES[key[0]].of_decisions
    what = "examples" if problem.sample.groups is None else "groups"
    single = [c for c in slope.classes if examples[c] == 1]
    few = [c for c in slope.classes if examples[c] < _FEW]
    if problem.sample.groups is not None and len(problem.design.strata) < _FEWEST_GROUPS:
        return math.nan, math.nan, f"no interval: {len(problem.design.strata)} groups are too few"
    if single and not (drawn and of_decisions):
        return math.nan, math.nan, f"no interval: class(es) {single} occur in a single {what[:-1]}"
    low, high, reason = ends
    if (drawn and of_decisions) or reason:
        return ends
    if few:
        reason = f"fewer than {_FEW} {what} of class(es) {few}: the interval is too short"
    elif slope.hangs_on < _HANGING and key[0] != "calibration_error":
        reason = f"hangs on about {max(1, round(slope.hangs_on))} of the {what}: the interval may be too short"
    other = _with_the_unseen(problem, key, examples, level)
    return min(low, other), max(high, other), reason


def _with_the_unseen(problem: Problem, key: Key, examples: Tensor, level: float) -> float:
    """The quantity if, of each class all of whose examples were decided alike, or ranked above all of another, as many were
    otherwise as may well have gone unmet (`unseen_share`). No resample shows them."""
    state = problem.state
    share = unseen_share(examples, level)[:, None, None]
    confusion = state.confusion
    alike = ((confusion == 1) | (confusion == 0)).all(1, keepdim=True)
    moved = torch.where(confusion == 1, 1 - share, share / max(1, len(examples) - 1))
    fewer = unseen_share(torch.minimum(examples[:, None], examples[None]), level)[..., None]
    areas = torch.where(state.areas == 1, 1 - fewer, torch.where(state.areas == 0, fewer, state.areas))
    return float(problem.quantities[key](replace(state, areas=areas, decided=torch.where(alike, moved, confusion))))


def _agree(draws: Tensor, value: float) -> bool:
    return float(draws.max() - draws.min()) <= 1e-13 * abs(value)
