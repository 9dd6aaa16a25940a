"""Low and high of every figure, by resampling or by differentiation.

Stage: `Problem` → `Ends` of each quantity.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from . import averages as within
from . import ranks
from .figures import FIGURES, State, calibration_gaps
from .intervals import Spread, bca, bca_moved, folded, jittered, normal, percentiles, resamples, unseen_share
from .problem import Key, Problem

Ends = tuple[float, float, str]  # low, high, and why there is none

_MOST_UNDEFINED = 0.05  # share of resamples in which a figure may be undefined and still have an interval


def by_resampling(problem: Problem, level: float, draws: int, generator: torch.Generator) -> dict[Key, Ends]:
    """BCa; each resample is also taken at a prevalence of its own where that is uncertain."""
    sample, state = problem.sample, problem.state
    uncertain = sample.prevalence.is_uncertain
    parts, parts_moved = [], []
    for counts in resamples(problem.design, draws, generator):
        width = counts.shape[1]
        averages = within.averages(sample, state.averages.recipe, counts)
        areas = ranks.areas(sample, problem.rankings, counts) if problem.rankings else state.areas
        parts.append(problem.stacked(State(averages, areas, state.population), width))
        if uncertain:
            population = sample.prevalence.sample(width, generator).T
            parts_moved.append(problem.stacked(State(averages, areas, population), width))
    table = torch.cat(parts, 1)
    moved = torch.cat(parts_moved, 1) if uncertain else table
    errors = _spreads(problem)
    ends: dict[Key, Ends] = {}
    for key, row, row_moved in zip(problem.quantities, table, moved, strict=True):
        value, (error, lean) = problem.values[key], errors[key]
        finite = torch.isfinite(row) & torch.isfinite(row_moved)
        fine, fine_moved = row[finite], row_moved[finite]
        if len(fine) < (1 - _MOST_UNDEFINED) * draws:
            ends[key] = (math.nan, math.nan, f"undefined in {1 - len(fine) / draws:.0%} of the resamples")
        elif key[0] == "calibration_error":
            ends[key] = (*_around_calibration_error(problem, error, row_moved if uncertain else None, level), "")
        elif _agree(fine_moved, value):
            ends[key] = (*_when_all_agree(problem, key, level), "")
        elif uncertain and not _agree(fine, value):
            ends[key] = (*bca_moved(fine, fine_moved, value, lean, level), "")
        elif uncertain:
            ends[key] = (*percentiles(fine_moved, (1 - level) / 2, (1 + level) / 2), "")
        else:
            ends[key] = (*bca(fine, value, lean, level), "")
    return ends


def by_differentiation(problem: Problem, level: float, draws: int, generator: torch.Generator) -> dict[Key, Ends]:
    """The delta method, on the scale of log-odds for figures between 0 and 1; an uncertain prevalence is drawn."""
    moved = None
    if problem.sample.prevalence.is_uncertain:
        population = problem.sample.prevalence.sample(draws, generator).T
        moved = problem.stacked(replace(problem.state, population=population), draws)
    noise = torch.randn(draws, dtype=torch.float64, generator=generator)
    ends: dict[Key, Ends] = {}
    for number, (key, (error, _)) in enumerate(_spreads(problem).items()):
        value, unit = problem.values[key], FIGURES[key[0]].unit
        row = None if moved is None else moved[number]
        if key[0] == "calibration_error":
            low, high = _around_calibration_error(problem, error, row, level)
        elif error <= 1e-13 * abs(value) and (row is None or _agree(row, value)):
            low, high = _when_all_agree(problem, key, level)
        elif row is None:
            low, high = normal(value, error, level, unit)
        else:
            low, high = percentiles(jittered(row, noise, value, error, unit), (1 - level) / 2, (1 + level) / 2)
        ends[key] = (low, high, "")
    return ends


def without_guesses(problem: Problem, ends: dict[Key, Ends]) -> dict[Key, Ends]:
    """No interval where there is nothing to make it from."""
    examples = problem.design.clusters_of_each(problem.sample.labels, problem.sample.num_classes)
    single = torch.nonzero(examples == 1).flatten().tolist()
    if not single:
        return ends
    what = "example" if problem.sample.groups is None else "group"
    return dict.fromkeys(ends, (math.nan, math.nan, f"no interval: class(es) {single} occur in a single {what}"))


def _agree(draws: Tensor, value: float) -> bool:
    return float(draws.max() - draws.min()) <= 1e-13 * abs(value)


def _spreads(problem: Problem) -> dict[Key, tuple[float, float]]:
    """Standard error and lean of every quantity, by its gradient in the class means and areas."""
    state, design = problem.state, problem.design
    means = state.averages.means.clone().requires_grad_()
    totals = state.averages.totals.clone().requires_grad_()
    areas = state.areas.clone().requires_grad_()
    live = State(replace(state.averages, means=means, totals=totals), areas, state.population)
    spreads = {key: Spread(design) for key in problem.quantities}
    gradients = {}
    for key, formula in problem.quantities.items():
        found = torch.autograd.grad(formula(live).sum(), (means, totals, areas), allow_unused=True, materialize_grads=True)
        gradients[key] = tuple(each[..., 0].nan_to_num() for each in found)
    plain = state.averages.means[..., 0].nan_to_num()
    per_example = 1 / state.averages.totals[:, 0]
    for block in within.blocks(problem.sample, state.averages.recipe):
        for key, (by_mean, by_total, _) in gradients.items():
            if bool(by_mean.any()):
                added = within.contributions(block, by_mean, plain) * per_example[block.labels]
                if design.clusters is not None:  # then the mix of the classes varies, too
                    added += by_total[block.labels] if block.votes is None else by_total[block.labels] * block.votes
                spreads[key].add(block.entries, added)
    for key, (_, _, by_area) in gradients.items():
        if bool(by_area.any()):
            added = ranks.contributions(problem.sample, problem.rankings, by_area, state.areas[..., 0])
            spreads[key].add(slice(None), added * per_example[problem.sample.labels])
    return {key: each.error_and_lean() for key, each in spreads.items()}


def _around_calibration_error(
    problem: Problem, error: float, at_population: Tensor | None, level: float
) -> tuple[float, float]:
    """As `folded` has it; moved by what an uncertain prevalence does to the value."""
    state = problem.state
    population, averages = state.population, state.averages
    variances = (averages.squared_gaps - averages.gaps.square()) / averages.totals[:, None]
    noise = (population.square()[:, None] * variances).sum(0)[:, 0].clamp_min(0).sqrt()
    parts = len(averages.recipe.edges)
    low, high = folded(calibration_gaps(state)[:, 0] / parts, noise / parts, error, level)
    if at_population is None:
        return low, high
    value = problem.values["calibration_error", None]
    least, most = percentiles(at_population, (1 - level) / 2, (1 + level) / 2)
    return max(value - math.hypot(value - low, value - least), 0.0), value + math.hypot(high - value, most - value)


def _when_all_agree(problem: Problem, key: Key, level: float) -> tuple[float, float]:
    """Where every resample has the same value: exact for a constant predictor; but of a class all of whose examples were
    decided alike, or ranked above all others, some may be decided otherwise that were not met (`unseen_share`)."""
    state = problem.state
    examples = problem.design.clusters_of_each(problem.sample.labels, problem.sample.num_classes)
    unseen = unseen_share(examples, level)
    means = state.averages.means.clone()
    view = replace(state.averages, means=means).confusion
    certain = (view == 1) | (view == 0)
    alike = certain.all(1, keepdim=True)
    share = unseen[:, None, None]
    others = max(1, len(unseen) - 1)
    view.copy_(torch.where(alike, torch.where(view == 1, 1 - share, share / others), view))
    fewer = unseen_share(torch.minimum(examples[:, None], examples[None]), level)[..., None]
    areas = torch.where(state.areas == 1, 1 - fewer, torch.where(state.areas == 0, fewer, state.areas))
    value = problem.values[key]
    other = float(problem.quantities[key](State(replace(state.averages, means=means), areas, state.population)))
    return min(value, other), max(value, other)
