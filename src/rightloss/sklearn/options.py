"""Check the constructor arguments that the trained classifiers share.

Stage: an estimator with its parameters as given → `NetworkSettings`, or a ValueError with the remedy.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from .criteria import LOSSES
from .network import ACTIVATIONS, NetworkSettings


def check_options(estimator: Any, penalties: tuple[str | None, ...]) -> None:
    """Raise a ValueError for the first parameter that cannot be used."""
    choices: dict[str, tuple[Any, ...]] = {"loss": LOSSES, "penalty": penalties, "activation": tuple(ACTIVATIONS)}
    for name, allowed in choices.items():
        value = getattr(estimator, name)
        if value not in allowed:
            raise ValueError(f"Expected `{name}` to be one of {list(allowed)}, but got {value!r}: choose one of them.")
    for name in ("C", "tol", "learning_rate_init"):
        value = getattr(estimator, name)
        if not _is_number(value, Real) or not value > 0:
            raise ValueError(f"Expected `{name}` to be a number > 0, but got {value!r}: leave it out for the default.")
    for name in ("max_iter", "n_iter_no_change"):
        value = getattr(estimator, name)
        if not _is_number(value, Integral) or value < 1:
            raise ValueError(f"Expected `{name}` to be a whole number ≥ 1, but got {value!r}: leave it out for the default.")
    fraction, batch = estimator.validation_fraction, estimator.batch_size
    if not _is_number(fraction, Real) or not 0 < fraction < 1:
        raise ValueError(f"Expected `validation_fraction` between 0 and 1, but got {fraction!r}: 0.1 is the default.")
    if batch != "auto" and not (_is_number(batch, Integral) and batch >= 1):
        raise ValueError(f"Expected `batch_size` to be 'auto' or a whole number ≥ 1, but got {batch!r}: 'auto' is 200 rows.")


def hidden_sizes(estimator: Any) -> tuple[int, ...]:
    """Return `hidden_layer_sizes` as a tuple; one number is one layer, none is a linear model."""
    given = estimator.hidden_layer_sizes
    sizes = (given,) if _is_number(given, Integral) else given
    if not isinstance(sizes, tuple | list) or not all(_is_number(size, Integral) and size >= 1 for size in sizes):
        raise ValueError(
            f"Expected `hidden_layer_sizes` to be whole numbers ≥ 1, such as (100,), but got {given!r}: () is a linear model."
        )
    return tuple(int(size) for size in sizes)


def network_settings(estimator: Any, rows: int, total: float) -> NetworkSettings:
    """Return the settings of a network for the given number of rows, with weights that sum to `total`."""
    batch = min(200, rows) if estimator.batch_size == "auto" else min(int(estimator.batch_size), rows)
    return NetworkSettings(
        hidden_layer_sizes=hidden_sizes(estimator),
        activation=estimator.activation,
        decay=1 / (estimator.C * total) if estimator.penalty == "l2" else 0.0,
        max_iter=estimator.max_iter,
        tol=estimator.tol,
        batch_size=batch,
        learning_rate_init=estimator.learning_rate_init,
        early_stopping=bool(estimator.early_stopping),
        validation_fraction=estimator.validation_fraction,
        n_iter_no_change=estimator.n_iter_no_change,
        verbose=bool(estimator.verbose),
    )


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
