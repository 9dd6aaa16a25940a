"""MC dropout: one network with many dropout masks.

Stage: `LogPosterior` of a model with dropout, data → `Posterior` of one draw, whose predictions draw masks.
"""

from __future__ import annotations

from .map import Search, drops_out, most_probable, one_draw
from .minibatches import Data, Device
from .posterior import Posterior
from .target import LogPosterior, inference_method


@inference_method
def mc_dropout(
    target: LogPosterior,
    data: Data,
    *,
    steps: int = 1000,
    batch_size: int | None = 128,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Train with dropout, and keep it on in predictions: variational inference at the cost of MAP (Gal 2016).

    q(w) is a point with random masks. The dropout probability fixes its variance; the data do not change it.

    Args:
        target: from `log_posterior`, of a model with `nn.Dropout` or another dropout layer.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: number of steps of Adam.
        batch_size: examples per step; None for all of them.
        lr: the initial learning rate; it decays to 0 as (1 − t/steps)².
        seed: seed of the order of the data, and of the masks in training.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `Particles` of one draw, with `dropout=True`; the record is that of `map_estimate`.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
        >>> target = rl.inference.log_posterior(model, rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.mc_dropout(target, (x, y), steps=20)
        >>> bool((posterior.predict(x).model_entropy > 0).all())  # masks disagree
        True
    """
    if not drops_out(target):
        raise ValueError(
            "Expected a model that drops out, but none of its modules does with a probability above 0: "
            "put nn.Dropout(0.1) between layers, or use map_estimate."
        )
    search = Search(steps, batch_size, lr, seed, device, progress)
    return most_probable(target, data, search, one_draw(dropout=True))
