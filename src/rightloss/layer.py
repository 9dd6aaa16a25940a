"""PrevalenceLayer: a trained model with the prevalence as an input.

Stage: model, prevalence → `nn.Module`: x, population → `log_probs`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from .arrays import is_traced, multiply_classes
from .finding_tables import multiply_findings
from .likelihoods import Categorical, Likelihood
from .likelihoods.standard import likelihood_of
from .predictive.retarget import refuse_patterns
from .prevalence import Frequencies, Mix, MultilabelPrevalence, Prevalence, frequencies, log_mix
from .serialization import PREVALENCE, Format, check_fit, prevalence_facts, read_file, saved_prevalence, write_file
from .tensors import as_input, by_cell, first_float, full_precision, in_mode, tensor_of

_FORMAT = Format(
    "rightloss.PrevalenceLayer",
    version=1,
    facts=(*PREVALENCE, "outputs_at", "classes", "likelihood"),
    thing="layer",
    saved_by="PrevalenceLayer.save",
    wrapping="wrap the model in a PrevalenceLayer",
)


class PrevalenceLayer(nn.Module):
    """Wrap a trained model so that it predicts at any prevalence, without retraining; the equation is in `retarget`.

    The prevalence of the layer cannot change. A state dict includes its logarithms, which `load_state_dict` compares: it
    refuses weights trained for another prevalence. It never loads the frequencies themselves.

    Exports with `torch.export` and `torch.onnx.export(…, dynamo=True)`, with x and the population as inputs
    ([example](../screening.md#6-hand-the-model-on)). For half precision convert the model, not the layer, because its
    log-frequencies would be rounded as well.

    Args:
        model: x → the likelihood's outputs.
        prevalence: π, the default population, and ρ, the mix that the model was trained on. With a `Prevalence.multilabel` the
            model gives a logit for each finding.
        likelihood: Categorical by default. One with its own parameters (`CumulativeLogit`) must be the trained one,
            `criterion.likelihood`.
        outputs_at: the mix of the model's outputs: "population" after one of rightloss's losses, "sampling" after
            plain cross-entropy on minibatches at ρ, or K frequencies.
        classes: names of the K classes, in the order of the columns.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> model = torch.nn.Linear(4, 2)  # trained for a prevalence of 0.01, with one of rightloss's losses
        >>> layer = rl.PrevalenceLayer(model, rl.Prevalence.binary(0.01), classes=["well", "ill"])
        >>> x = torch.randn(3, 4)
        >>> layer(x, torch.tensor(0.2)).shape
        torch.Size([3, 2])
        >>> torch.equal(layer.predict(x, population={"well": 0.99, "ill": 0.01}), layer.predict(x))
        True
    """

    log_population: Tensor
    log_outputs_at: Tensor

    def __init__(
        self,
        model: nn.Module,
        prevalence: Prevalence | MultilabelPrevalence,
        likelihood: Likelihood | None = None,
        outputs_at: Literal["population", "sampling"] | Frequencies = "population",
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ValueError(f"Expected `model` to be an nn.Module, but got {type(model).__name__}: wrap it in one.")
        given: Any = prevalence
        if not isinstance(given, Prevalence | MultilabelPrevalence):
            came = f"{type(given).__name__}: give the one the model was trained for, and the estimate to `predict`"
            raise ValueError(f"Expected a Prevalence of classes, but got {came}.")
        if isinstance(prevalence, Prevalence):
            likelihood = Categorical(prevalence.num_classes) if likelihood is None else likelihood
            self.classes = _class_names(classes, prevalence.num_classes)
        else:
            self.classes = prevalence.names
            if classes is not None and tuple(classes) != prevalence.names:
                raise ValueError(f"Expected the names of the prevalence, {list(prevalence.names)}, but got {list(classes)}.")
            if outputs_at == "sampling":
                refuse_patterns(prevalence, prevalence.sampling)
        self.likelihood = likelihood_of(likelihood, prevalence)
        self.model, self.prevalence = model, prevalence
        self.outputs_at, log_mix = _outputs_at(outputs_at, prevalence)
        like = full_precision(first_float(model, torch.empty(0)))
        self.register_buffer("log_population", _log_frequencies(prevalence.population, prevalence).to(like))
        self.register_buffer("log_outputs_at", log_mix.to(like))

    def forward(self, x: Any, population: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        """Return log-probabilities at `population`, by default that of the prevalence.

        Args:
            x: the model's input, of any type that it takes.
            population: a tensor: `(K,)` for all rows, or `(n, K)` with one per row. For two classes also the frequency of class
                1: a tensor without dimensions, `(1,)` or `(n, 1)`. For findings a rate each, `(L,)` or `(n, L)`.

        Returns:
            `(n, K)`; for several findings `(n, L)`, the log-probability that each is present.
        """
        table = self._table(self.model(x))
        log_pi = self.log_population if population is None else self._log_population(population, table.shape[0])
        return self._moved(table, log_pi)

    @torch.no_grad()
    def predict(self, x: Any, population: Mix | MultilabelPrevalence | Mapping[str, float | int] | None = None) -> Any:
        """Return log-probabilities in eval mode, without gradient.

        Args:
            x: the model's input. Floats are cast to the model's dtype and device. An array or DataFrame of numbers is
                converted to such a tensor (ints stay ints for a model with an `nn.Embedding`), and the result to an array.
            population: as `to` of `retarget`, or a dict by the names in `classes`.
        """
        with in_mode(self, training=False):
            table = self._table(self.model(_model_input(x, self.model, self.log_population)))
        log_pi = self.log_population
        if population is not None and isinstance(self.prevalence, MultilabelPrevalence):
            given: Any = population
            rates = given if np.ndim(given) == 2 else self.prevalence.retarget(given).population
            log_pi = self._log_population(torch.as_tensor(rates), len(table))
        elif population is not None:
            assert isinstance(self.prevalence, Prevalence)
            log_pi = tensor_of(log_mix(self._by_column(population), "population", self.prevalence.num_classes, len(table)))
        moved = self._moved(table, log_pi)
        if not isinstance(x, np.ndarray) and not _is_frame(x):
            return moved
        return (moved.float() if moved.dtype == torch.bfloat16 else moved).cpu().numpy()  # NumPy has no bfloat16

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and prevalence to one safetensors file, whole or not at all. Needs `rightloss[export]`.

        `load` detects damage by the SHA-256 digest in the file. It does not detect a forgery, which can have a new digest; sign
        the file if that matters. Weights by pattern of a multi-label prevalence are not needed to predict, and not written.
        """
        write_file(_FORMAT, path, self.state_dict(), self._facts())

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, likelihood: Likelihood | None = None) -> PrevalenceLayer:
        """Return a saved layer. Nothing in the file is unpickled or run.

        Args:
            path: a file written by `save`.
            model: a new model of the same architecture and dtype; the saved weights are copied into it.
            likelihood: of the same type as that of the saved layer; Categorical by default. Its weights are copied as well.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another kind or of a newer version, or does not fit `model` and `likelihood`,
                which are then not changed.
        """
        tensors, facts = read_file(_FORMAT, path)
        prevalence: Prevalence | MultilabelPrevalence
        if isinstance(facts["likelihood"], dict) and facts["likelihood"].get("name") == "Findings":
            rates = facts["population"], facts["sampling"], facts["evidence"]
            prevalence = Prevalence.multilabel(*rates, names=facts["classes"])
        else:
            prevalence = saved_prevalence(facts)
        layer = cls(model, prevalence, likelihood, facts["outputs_at"], facts["classes"])
        saved, own = facts["likelihood"], layer._facts()["likelihood"]
        if saved != own:
            raise ValueError(f"Expected the likelihood of the saved layer, {saved}, but got {own}: pass `likelihood=…`.")
        check_fit(tensors, layer.state_dict())
        layer.load_state_dict(tensors)
        return layer

    def extra_repr(self) -> str:
        return f"{self.prevalence}, outputs_at={self.outputs_at!r}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        mixes = {
            "log_population": _log_frequencies(self.prevalence.population, self.prevalence),
            "log_outputs_at": _outputs_at(self.outputs_at, self.prevalence)[1],
        }
        for name, own in mixes.items():
            given = state_dict.get(prefix + name)
            if given is None or given.shape != own.shape:
                continue  # torch reports it
            # up to half precision, in case the state was saved in it
            if not torch.allclose(given.to(own), own, rtol=2**-7, atol=1e-7):
                came = f"{given.tolist()} there and {own.tolist()} here: make this layer with the other's prevalence"
                raise ValueError(f"Expected weights of a layer of the same prevalence, but `{name}` is {came}.")
            state_dict[prefix + name] = own.to(given.device, getattr(self, name).dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _table(self, outputs: Tensor) -> Float[Tensor, "n k *dense"]:
        size, remedy = self.log_population.shape[-1], "match the last layer and the prevalence"
        if isinstance(self.prevalence, MultilabelPrevalence):
            if outputs.ndim < 2 or outputs.shape[1] != size:
                came = f"shape {tuple(outputs.shape)}: {remedy}"
                raise ValueError(f"Expected a logit for each of {size} findings (multi-label), but got {came}.")
            return torch.log_softmax(torch.stack([torch.zeros_like(outputs), outputs], 1), 1)
        if outputs.ndim == 1 and self.likelihood.num_outputs == 1:
            outputs = outputs.unsqueeze(1)
        table = by_cell(self.likelihood.table, outputs)
        if table.shape[1] != size:
            raise ValueError(f"Expected the model to predict {size} classes, but got {table.shape[1]}: {remedy}.")
        return table

    def _moved(self, table: Tensor, log_pi: Tensor) -> Tensor:
        wide = full_precision(table)
        log_factors = log_pi.to(wide) - self.log_outputs_at.to(wide)
        if isinstance(self.prevalence, MultilabelPrevalence):
            return multiply_findings(table, log_factors)[:, 1]
        return multiply_classes(table, log_factors)

    def _log_population(self, population: Any, rows: int) -> Tensor:
        """Return log π for `forward`; values are checked only outside a graph that is being traced."""
        if isinstance(self.prevalence, MultilabelPrevalence):
            return _log_finding_rates(population, len(self.prevalence), rows)
        size = self.prevalence.num_classes
        if not isinstance(population, Tensor) or (population.ndim == 0 and size != 2):
            remedy = f"write torch.tensor({'rate' if size == 2 else '[…]'}), or use `predict`, which also takes numbers"
            raise ValueError(f"Expected `population` to be a tensor of {size} frequencies, but got {population!r}: {remedy}.")
        if population.ndim == 0:
            population = population[None]
        if not is_traced(population):
            one = size == 2 and population.shape == (1,)
            log_mix(population[0] if one else population, "population", size, rows)
        elif population.shape[-1] not in ((1, 2) if size == 2 else (size,)):
            came = f"shape {tuple(population.shape)}: give the exporter an example of the shape that will be used"
            raise ValueError(f"Expected `population` to have {size} entries, one per class, but got {came}.")
        if population.shape[-1] != size:  # how often class 1 occurs
            population = torch.cat([1 - population, population], -1)
        return population.log()

    def _by_column(self, population: Any) -> Any:
        if not isinstance(population, Mapping):
            return population
        if self.classes is None or set(population) != set(self.classes):
            names = "none, so pass `classes=…` to the layer" if self.classes is None else ", ".join(self.classes)
            came = f"{list(population)}: the classes' names are {names}"
            raise ValueError(f"Expected a frequency for each class by its name, but got {came}.")
        return [population[name] for name in self.classes]

    def _facts(self) -> dict[str, Any]:
        return {
            **prevalence_facts(self.prevalence),
            "outputs_at": self.outputs_at,
            "classes": None if self.classes is None else list(self.classes),
            "likelihood": {"name": type(self.likelihood).__name__, "levels": self.log_population.shape[-1]},
        }


def _log_frequencies(population: np.ndarray, prevalence: Prevalence | MultilabelPrevalence) -> Tensor:
    """Return log π `(K,)`, and for L findings those of absent and present, `(2, L)`."""
    pi = tensor_of(population)
    return pi.log() if isinstance(prevalence, Prevalence) else torch.stack([torch.log1p(-pi), pi.log()])


def _log_finding_rates(population: Any, findings: int, rows: int) -> Tensor:
    """Return the log-rates of absent and present of each finding, `(2, L)` or `(n, 2, L)`."""
    if not isinstance(population, Tensor) or population.shape not in ((findings,), (rows, findings)):
        remedy = "write torch.tensor([…]), or use `predict`, which also takes lists and dicts"
        raise ValueError(f"Expected `population` to be {findings} rates (multi-label), but got {population!r}: {remedy}.")
    if not is_traced(population) and not bool(((population > 0) & (population < 1)).all()):
        raise ValueError(f"Expected rates strictly between 0 and 1 in `population`, but got {population.tolist()}.")
    return torch.stack([torch.log1p(-population), population.log()], -2)


def _model_input(x: Any, model: nn.Module, default: Tensor) -> Any:
    """Return x as an input of `model`: tensors, arrays and DataFrames become floats of its dtype, on its device."""
    if isinstance(x, Tensor):
        return x.to(first_float(model, x)) if x.is_floating_point() else x
    return as_input(_numbers(x) if _is_frame(x) else x, model, default)


def _is_frame(x: Any) -> bool:
    """Return whether x is a DataFrame of pandas or of a similar library."""
    return all(hasattr(x, name) for name in ("columns", "dtypes", "to_numpy"))


def _numbers(frame: Any) -> np.ndarray:
    columns = {name: np.array(np.asarray(frame[name]).tolist()) for name in frame.columns}  # their dtypes may differ
    others = [name for name, column in columns.items() if column.dtype.kind not in "biuf"]
    if others:
        remedy = "encode words with pandas.get_dummies(x), fill what is missing with x.fillna(…), as was done in training"
        raise ValueError(f"Expected a DataFrame of numbers, but column(s) {others} are not: {remedy}.")
    return np.stack(list(columns.values()), 1)


def _outputs_at(value: Any, prevalence: Prevalence | MultilabelPrevalence) -> tuple[str | list[float], Tensor]:
    """Return `outputs_at` as the layer stores it, and its log-frequencies."""
    if isinstance(value, str):
        if value not in ("population", "sampling"):
            remedy = "'population' after one of rightloss's losses, 'sampling' after cross-entropy"
            raise ValueError(
                f"Expected `outputs_at` to be 'population', 'sampling' or frequencies, but got {value!r}: {remedy}"
            )
        return value, _log_frequencies(getattr(prevalence, value), prevalence)
    if isinstance(prevalence, Prevalence):
        mix = frequencies(value, "outputs_at", prevalence.num_classes)
    else:
        mix = prevalence.retarget(value).population
    return mix.tolist(), _log_frequencies(mix, prevalence)


def _class_names(classes: Any, num_classes: int) -> tuple[str, ...] | None:
    if classes is None:
        return None
    names = tuple(classes) if isinstance(classes, list | tuple) else (classes,)
    if not all(isinstance(name, str) for name in names) or not len(names) == len(set(names)) == num_classes:
        raise ValueError(f"Expected {num_classes} names in `classes`, all different, but got {list(names)}: name every column.")
    return names
