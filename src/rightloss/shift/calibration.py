"""Calibrate predictions on held-out labelled rows: one temperature, a temperature and biases, or a temperature per class.

Stage: held-out `log_probs (n, k)`, labels → `HeldOut` → `Calibration`, which maps `log_probs` to calibrated `log_probs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..log_probs import Numbers, Predictions, as_given, clusters_of, log_prob_table, map_of, rows_of, tensor_of
from ..prevalence import class_frequencies

CalibrationKind = Literal["mean", "temperature", "bias-corrected", "vector"]
KINDS = get_args(CalibrationKind)
_MOST_LEVERAGE = 0.9  # of a row on its own prediction, in the covariance of a fit


@dataclass(frozen=True)
class Calibration:
    """q(k|x) ∝ exp(a_k log p(k|x) + b_k), with a_k = 1/temperature: call it with log-probabilities.

    The calibrated predictions hold at the mix `sampling`.

    Attributes:
        kind: "temperature" (one, no bias), "bias-corrected" (one, and a bias per class) or "vector" (both per class); "mean"
            does not change the predictions, and only finds the mix at which they hold.
        temperature: T (K,); K times the same unless the kind is "vector".
        bias: b (K,), with mean 0.
        sampling: the mean of the calibrated predictions over the held-out set (K,). With biases this is the label frequencies;
            without, it is only as good as the predictions.
        counts: the number of held-out examples of each class (K,).
        covariance: covariance of the fitted (a, b − log sampling), `(2K, 2K)`, up to a constant added to the second half.

    Examples:
        >>> import torch
        >>> from rightloss.shift import fit_calibration
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]]).log()
        >>> calibration = fit_calibration(log_probs, labels)
        >>> calibration(log_probs).exp().mean(0).round(decimals=3)  # the label frequencies
        tensor([0.5000, 0.5000])
    """

    kind: CalibrationKind
    temperature: Tensor
    bias: Tensor
    sampling: Tensor
    counts: Tensor = field(repr=False)
    covariance: Tensor = field(repr=False)

    @property
    def has_biases(self) -> bool:
        """True if the mix of the calibrated predictions is that of the held-out labels, rather than of the predictions."""
        return self.kind in ("bias-corrected", "vector")

    def __call__(self, log_probs: Predictions) -> Any:
        """Return calibrated log-probabilities, `(n, k)` or dense `(n, k, h, w, …)`, with the type and dtype of the input."""
        given = tensor_of(log_probs, "log_probs")
        rows = log_prob_table(rows_of(given), len(self.bias))
        return as_given(map_of(self.apply(rows.to("cpu", torch.float64)).to(rows), given.shape), log_probs)

    def apply(self, log_probs: Tensor) -> Tensor:
        """Calibrate a float64 table `(n, k)` without checks."""
        return log_probs if self.kind == "mean" else torch.log_softmax(log_probs / self.temperature + self.bias, 1)


def fit_calibration(log_probs: Predictions, labels: Numbers, kind: CalibrationKind = "bias-corrected") -> Calibration:
    """Fit a calibration to labelled predictions by maximum likelihood, with Newton's method to full convergence.

    "bias-corrected" is from Alexandari, Kundaje, Shrikumar (2020). Its mean prediction equals the label frequencies; they
    found that an estimate of a prevalence needs the biases. The held-out set must not be training data, and needs every class.
    With fewer than 15 examples of a class, regions based on the fit cover less than their level.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`.
        labels: class numbers `(n,)`, or `(n, h, w, …)`. Rows and cells labelled −100 are ignored.
        kind: "mean", "temperature", "bias-corrected" or "vector".

    Examples:
        >>> import torch
        >>> from rightloss.shift import fit_calibration
        >>> labels = torch.arange(2000) % 2
        >>> logit = 2 * (torch.randn(2000) + 2 * labels - 1)
        >>> overconfident = torch.log_softmax(torch.stack([0 * logit, 3 * logit], 1), 1)
        >>> fit_calibration(overconfident, labels, "temperature").temperature.round()
        tensor([3., 3.], dtype=torch.float64)
    """
    if kind not in KINDS:
        raise ValueError(f"Expected `kind` to be one of {', '.join(KINDS)}, but got {kind!r}: choose one of them.")
    return calibrate(held_out_set((log_probs, labels)), kind)


@dataclass(frozen=True)
class HeldOut:
    """Labelled predictions: log-probabilities `(n, k)` in float64, labels and, if rows are correlated, their groups `(n,)`."""

    log_probs: Tensor
    labels: Tensor
    groups: Tensor | None = None

    @property
    def counts(self) -> np.ndarray:
        """The number of examples of each class (K,)."""
        return torch.bincount(self.labels, minlength=self.log_probs.shape[1]).double().numpy()


def held_out_set(held_out: Any, num_classes: int | None = None, groups: Any = None) -> HeldOut:
    """Return checked `(log_probs, labels)`, dense maps with a row per cell, without the rows labelled −100."""
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        raise ValueError(
            f"Expected `held_out` to be a pair (log_probs, labels), but got {type(held_out).__name__}: "
            "pass the predictions of the same model on labelled data, and the labels."
        )
    given = tensor_of(held_out[0], "held_out log_probs").detach()
    table = log_prob_table(rows_of(given), num_classes, "held_out log_probs").to("cpu", torch.float64)
    labels = tensor_of(held_out[1], "held_out labels").detach().cpu()
    labels = labels.long() if labels.dtype == torch.bool and table.shape[1] == 2 else labels
    expected = (len(given), *given.shape[2:])
    if labels.shape != expected:
        what = "row" if given.ndim == 2 else "cell"
        raise ValueError(
            f"Expected one held-out label per {what}, {expected}, but got shape {tuple(labels.shape)}: "
            "were some examples dropped from one of the two? For multi-label data, pass a Prevalence.multilabel as `sampling`."
        )
    class_frequencies(labels, table.shape[1], ignore_index=-100)  # raises for labels that are not class numbers
    index = labels.flatten().long()
    kept = index != -100
    clusters = None if groups is None else clusters_of(groups, given.shape)
    if bool(kept.all()):
        return HeldOut(table, index, clusters)
    return HeldOut(table[kept], index[kept], None if clusters is None else torch.unique(clusters[kept], return_inverse=True)[1])


def require_every_class(data: HeldOut) -> None:
    """Raise a ValueError if a class has no held-out example."""
    missing = np.flatnonzero(data.counts == 0).tolist()
    if missing:
        raise ValueError(
            f"Expected held-out examples of every class, but class(es) {missing} have none: add some, or leave the class out."
        )


@torch.inference_mode(False)  # so that the calibration can also be used in training
def calibrate(data: HeldOut, kind: CalibrationKind) -> Calibration:
    """Return the calibration of `fit_calibration`, for a checked set."""
    size = data.log_probs.shape[1]
    require_every_class(data)
    if kind != "mean":
        _require_some_probability(data)
    table = data.log_probs.T.clamp_min(-1e5).contiguous()  # a class with probability 0 keeps it at every temperature
    design = _design(kind, size)
    both = _plain(size) if kind == "mean" else _plain(size) + design @ _fitted(table, data.labels, design)
    probs = table.exp() if kind == "mean" else _normalised(table, both)[1]
    never = torch.nonzero(probs.sum(1) == 0).flatten().tolist()
    if never:
        raise ValueError(
            f"Expected predictions that give every class some probability, but class(es) {never} never have any in the "
            "held-out set: leave such a class out."
        )
    slope, bias = both[:size], both[size:] - both[size:].mean()
    covariance = _of_mean(probs) if kind == "mean" else _covariance(table, data, probs, design)
    mean = probs.mean(1)  # with predictions in half precision it sums to 1 only roughly
    return Calibration(kind, 1 / slope, bias, mean / mean.sum(), torch.from_numpy(data.counts), covariance)


def _require_some_probability(data: HeldOut) -> None:
    own = data.log_probs.gather(1, data.labels[:, None]).squeeze(1)
    if not bool(torch.isfinite(own).all()):
        row = int(torch.nonzero(~torch.isfinite(own))[0])
        raise ValueError(
            f"Expected predictions that give each held-out label some probability, but row {row} gives its label none: "
            "mix a little of the class frequencies into the predictions first, or use calibration='mean'."
        )


def _design(kind: CalibrationKind, size: int) -> Tensor:
    """Return the matrix `(2K, P)` from the parameters to (a_1 … a_K, b_1 … b_K)."""
    eye = torch.eye(2 * size, dtype=torch.float64)
    shared = torch.cat([torch.ones(size, 1), torch.zeros(size, 1)]).double()
    return {
        "mean": eye[:, :0],
        "temperature": shared,
        "bias-corrected": torch.cat([shared, eye[:, size:]], 1),
        "vector": eye,
    }[kind]


def _plain(size: int) -> Tensor:
    """Return the (a, b) of the identity."""
    return torch.cat([torch.ones(size), torch.zeros(size)]).double()


class _Point(NamedTuple):
    """The log-likelihood at `params`, with its gradient and negative second derivatives."""

    params: Tensor
    value: float
    gradient: Tensor
    curvature: Tensor


def _fitted(table: Tensor, labels: Tensor, design: Tensor) -> Tensor:
    """Maximise the concave log-likelihood by Newton's method with step halving. Tables are `(K, n)` from here on."""
    size = len(table)
    own = torch.nn.functional.one_hot(labels, size).double().T
    labelled = torch.cat([(own * table).sum(1), own.sum(1)])

    def likelihood(params: Tensor) -> _Point:
        both = _plain(size) + design @ params
        log_total, probs = _normalised(table, both)
        sums, information = _sums(table, probs)
        value = float(both @ labelled - log_total.sum())
        return _Point(params, value, design.T @ (labelled - sums), design.T @ information @ design)

    point = _start(likelihood, design)
    for _ in range(100):
        step = torch.linalg.pinv(point.curvature, rtol=1e-12, hermitian=True) @ point.gradient
        gain = float(point.gradient @ step)
        if -point.value < 1e-6 and len(step):  # every label is predicted with certainty
            break
        if gain < 1e-10:  # take this last step too: it squares the error
            _check_slopes((_plain(size) + design @ (point.params + step))[:size], table, labels)
            return point.params + step
        found = _halved_step(likelihood, point, step, gain)
        if found is None:
            return point.params
        point = found
        if float((design @ point.params)[:size].abs().max()) > 1e4:
            break
    _check_slopes((_plain(size) + design @ point.params)[:size], table, labels)
    raise ValueError(
        "Expected predictions and labels that can be calibrated, but the predictions separate the held-out labels perfectly, "
        "so that the likelihood has no maximum: use more held-out examples, or calibration='mean'."
    )


def _start(likelihood: Callable[[Tensor], _Point], design: Tensor) -> _Point:
    """Return the start: the identity, or slopes of 0.1, 0.01, … if more probable (confident mistakes have no curvature)."""
    softer = torch.linalg.pinv(design) @ _plain(len(design) // 2)
    point = likelihood(torch.zeros(design.shape[1], dtype=torch.float64))
    for slope in (0.1, 0.01, 1e-3, 1e-4, 1e-5):
        found = likelihood((slope - 1) * softer)
        if found.value <= point.value:
            break
        point = found
    return point


def _halved_step(likelihood: Callable[[Tensor], _Point], point: _Point, step: Tensor, gain: float) -> _Point | None:
    """Return the first point of step, step/2, step/4, … with a sufficient gain, or None."""
    share = 1.0
    while share > 1e-8:
        found = likelihood(point.params + share * step)
        if found.value >= point.value + 1e-4 * share * gain - 1e-14 * abs(point.value):
            return found
        share /= 2
    return None


def _normalised(table: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ_k exp(a_k log p_k + b_k) of each row (n,), and the calibrated probabilities `(K, n)`."""
    slope, bias = params[:, None].split(len(table))
    logits = torch.addcmul(bias, slope, table)
    top = logits.amax(0)
    probs = logits.sub_(top).exp_()
    total = probs.sum(0)
    return total.log() + top, probs.div_(total)


def _sums(table: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_n p_n (log p_n, 1), (2K,), and the negative second derivatives of the log-likelihood by (a, b), `(2K, 2K)`."""
    moved = probs * table
    both = torch.cat([moved, probs])
    sums = both.sum(1)
    squared, crossed, own = (torch.diag(each) for each in ((moved * table).sum(1), *sums.split(len(table))))
    return sums, torch.cat([torch.cat([squared, crossed], 1), torch.cat([crossed, own], 1)]) - both @ both.T


def _of_mean(probs: Tensor) -> Tensor:
    """Return `_covariance` for "mean", where nothing is fitted: the covariance of the log of the mean prediction.

    One row with the largest covariance for this mean, that of one-hot rows, is added, because few rows can underestimate it.
    """
    size, rows = probs.shape
    spread = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
    mean = probs.mean(1, keepdim=True)
    relative = probs / mean - 1
    spread[size:, size:] = (relative @ relative.T + torch.diag(1 / mean.squeeze(1)) - 1) / rows**2
    return spread


def _covariance(table: Tensor, data: HeldOut, probs: Tensor, design: Tensor) -> Tensor:
    """Return the covariance of (a, b − log mean prediction), from the influence of each held-out row: valid for any model.

    A row changes (a, b) by A times its score. It changes the mean prediction by its own prediction, and by the effect of
    (a, b) on all predictions, whose derivative is the lower half of the information matrix. A row pulls the fit towards itself,
    so its residual is divided by 1 − its leverage, which gives what the fit without it leaves (HC3, MacKinnon and White 1985).
    """
    size, rows = table.shape
    information = _sums(table, probs)[1]
    moves = design @ torch.linalg.pinv(design.T @ information @ design, rtol=1e-12, hermitian=True) @ design.T
    mean = probs.mean(1, keepdim=True)
    left = (-probs).scatter_add_(0, data.labels[None], torch.ones(1, rows, dtype=torch.float64))
    left /= 1 - _leverage(table, probs, moves).clamp(0, _MOST_LEVERAGE)
    seen = torch.cat([left * table, left, probs - mean])  # scores, and predictions
    by_scores = moves.clone()
    by_scores[size:] -= information[size:] @ moves / (rows * mean)
    by_prediction = torch.cat([torch.zeros(size, size).double(), torch.diag(-1 / (rows * mean.squeeze(1)))])
    influence = torch.cat([by_scores, by_prediction], 1)
    if data.groups is not None:  # rows of a group add up
        seen = torch.zeros(len(seen), int(data.groups.max()) + 1, dtype=seen.dtype).index_add_(1, data.groups, seen)
    return influence @ (seen @ seen.T) @ influence.T


def _leverage(table: Tensor, probs: Tensor, moves: Tensor) -> Tensor:
    """Return the share of each row in its own fitted logits (n,): tr(W_n X_n A X_nᵀ), with W_n = diag(p_n) − p_n p_nᵀ."""
    size = len(table)
    both = torch.cat([probs * table, probs])
    by_slope, crossed, by_bias = (
        torch.diag(each)[:, None] for each in (moves[:size, :size], moves[:size, size:], moves[size:, size:])
    )
    own = probs * (table.square() * by_slope + 2 * table * crossed + by_bias)
    return own.sum(0) - (both * (moves @ both)).sum(0)


def _check_slopes(slopes: Tensor, table: Tensor, labels: Tensor) -> None:
    against = torch.nonzero(slopes <= 0).flatten().tolist()
    if not against:
        return
    order = _better_order(table, labels)
    if order is not None:
        remedy = f"put the columns in the order of the class numbers; log_probs[:, {order}] agrees with the labels"
    elif len(against) < len(slopes):  # only if each class has its own temperature
        remedy = "give all classes one temperature, 'bias-corrected'"
    else:
        remedy = (
            "are rows and labels in the same order, and columns in that of the class numbers? If so, no calibration helps: "
            "estimate with method='bbse', which needs none, or use another model"
        )
    raise ValueError(
        f"Expected held-out labels that the predictions agree with, but the best temperature of class(es) {against} is "
        f"negative: {remedy}."
    )


def _better_order(table: Tensor, labels: Tensor) -> list[int] | None:
    """Return the order of the columns that the labels clearly support, if it is not the given one, else None."""
    size = len(table)
    own = torch.nn.functional.one_hot(labels, size).double()
    by_class = table.exp() @ (own / own.sum(0))  # the mean prediction of j among examples of k
    lift, which = (by_class / by_class.mean(1, keepdim=True).clamp_min(1e-300)).topk(2, 0)
    order = which[0].tolist()
    clear = sorted(order) == list(range(size)) and bool((lift[0] > 1.2 * lift[1]).all())
    return order if clear and order != list(range(size)) else None
