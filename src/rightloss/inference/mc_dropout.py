"""MC dropout: one net, many masks.

Stage: `LogPosterior` of a model with dropout, data → `Posterior` of one draw, whose predictions draw masks.
"""

from __future__ import annotations

from typing import Any

from .map import drops_out, most_probable, one_draw
from .posterior import Posterior
from .target import LogPosterior, inference_method


@inference_method
def mc_dropout(
    target: LogPosterior,
    data: Any,
    *,
    steps: Any = 1000,
    batch_size: Any = 128,
    lr: Any = 1e-2,
    seed: Any = 0,
    device: Any = None,
    progress: bool | None = None,
) -> Posterior:
    """Variational inference at the price of MAP: training with dropout, which then stays on in predictions (Gal 2016).

    q(w) is a point with random masks. The masks' probability is the spread: nothing in the data widens or narrows it.

    Args:
        target: from `log_posterior`, of a model in which something drops out: `nn.Dropout` and its relatives.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: of Adam.
        batch_size: examples in a step; None for all of them.
        lr: the first step size; it falls to 0 as (1 − t/steps)².
        seed: of the order of the data, and of the masks in training.
        device: where to compute; None: where model and data are.
        progress: whether a bar is shown; None: on a terminal.

    Returns:
        `Particles` of one draw, with `dropout=True`; the record is that of `map_estimate`.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.
    """
    if not drops_out(target):
        raise ValueError(
            "Expected a model that drops out, but none of its modules does with a probability above 0: "
            "put nn.Dropout(0.1) between layers, or use map_estimate."
        )
    return most_probable(target, data, steps, batch_size, lr, False, seed, device, progress, one_draw(dropout=True))
