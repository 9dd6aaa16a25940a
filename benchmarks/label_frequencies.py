"""Compare the batch's label frequencies f_k with the declared ρ_k in the loss's term Σ_k (f_k − κ r_k) log p(k|w).

Bias and variance of the minibatch gradient at exact q, then whole trainings with running q, at r = ρ and κ = 1, where with ρ_k
the term is 0 and the loss is `F.cross_entropy(logits + offset, y)`, logit adjustment. Writes label_frequencies.md.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from report import folder, table
from scipy.stats import chi2
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

import rightloss as rl

DRAWS, SEEDS, STEPS, POPULATION = 10_000, 8, 600, 0.01
Drawn = tuple[list[Tensor], int, bool]  # rows of each class, rows in a batch, stratified?


def draw(data: Drawn, batches: int, sampling: Tensor, generator: torch.Generator) -> Tensor:
    """Return the row numbers of minibatches, `(batches, rows)`: classes i.i.d. at ρ, or each in its exact share."""
    rows, size, stratified = data
    if stratified:
        shares = (size * sampling).round().long()
        classes = torch.repeat_interleave(torch.arange(len(rows)), shares).expand(batches, -1)
    else:
        classes = torch.multinomial(sampling, batches * size, replacement=True, generator=generator).view(batches, size)
    numbers = torch.rand(classes.shape, generator=generator)
    choices = torch.stack([own[(numbers * len(own)).long()] for own in rows])
    return choices.gather(0, classes[None])[0]


def gradients() -> list[list[str]]:
    """Return a row for each batch size, kind of batch and form: four classes, a softmax model that is half trained."""
    generator, y = torch.Generator().manual_seed(0), torch.arange(8000) % 4
    x = torch.randn(8000, 4, dtype=torch.float64, generator=generator) + 1.5 * F.one_hot(y, 4)
    x = torch.cat([x, torch.ones(8000, 1, dtype=torch.float64)], 1)
    weight = torch.cat([0.6 * torch.eye(4), torch.tensor([[0.8], [0.2], [-0.4], [-0.6]])], 1).double()
    probs, sampling = torch.softmax(x @ weight.T, 1), torch.full((4,), 0.25, dtype=torch.float64)
    q = probs.mean(0)
    of_row = ((probs - F.one_hot(y, 4))[:, :, None] * x[:, None]).flatten(1)
    scores = torch.eye(4)[None] - probs[:, None]  # ∂ log p_k / ∂ z_j
    of_marginal = ((probs / q)[:, :, None, None] * scores[..., None] * x[:, None, None]).flatten(2)  # ∇p_k / q_k
    exact, cells = of_row.mean(0), []
    for size in (8, 32):
        for stratified in (False, True):
            rows = draw(([torch.nonzero(y == k).flatten() for k in range(4)], size, stratified), DRAWS, sampling, generator)
            plain = of_row[rows].mean(1)
            found = F.one_hot(y[rows], 4).double().mean(1)
            moved = torch.cat([of_marginal[part].mean(1) for part in rows.split(500)])
            for name, estimate in (("f", plain + ((found - sampling)[..., None] * moved).sum(1)), ("ρ", plain)):
                error, spread = estimate.mean(0) - exact, torch.cov(estimate.T)
                statistic = DRAWS * error @ torch.linalg.pinv(spread, rtol=1e-9, hermitian=True) @ error
                freedom = int(torch.linalg.matrix_rank(spread, rtol=1e-9, hermitian=True))
                worst = (error / (spread.diagonal() / DRAWS).sqrt()).abs().max()
                cells.append(
                    [
                        str(size),
                        "stratified" if stratified else "i.i.d.",
                        name,
                        f"{100 * error.norm() / exact.norm():.2f} %",
                        f"{100 * math.sqrt(float(spread.trace()) / DRAWS) / exact.norm():.2f} %",
                        f"{worst:.1f}",
                        f"{chi2.sf(float(statistic), freedom):.2g}",
                        f"{spread.trace():.4f}",
                    ]
                )
    return cells


def data_sets() -> dict[str, tuple[Tensor, Tensor]]:
    cancer, digits, nodules = load_breast_cancer(), load_digits(), rl.lidc.binary_set()
    tables = {
        "breast cancer": (cancer.data, 1 - cancer.target),
        "digits, 8 or not": (digits.data, (digits.target == 8).astype(int)),
        "LIDC features": (nodules.features, nodules.labels),
    }
    result = {}
    for name, (x, y) in tables.items():
        values = torch.as_tensor(x, dtype=torch.float32)
        scale = values.std(0)
        result[name] = ((values - values.mean(0))[:, scale > 0] / scale[scale > 0], torch.as_tensor(y).long())
    return result


def train(x: Tensor, y: Tensor, data: Drawn, sampling: Tensor, own: bool, seed: int, steps: int = STEPS) -> torch.nn.Module:
    """Return a net trained with f_k (`own`) or ρ_k, r = ρ, κ = 1, running q, started at π."""
    torch.manual_seed(seed)
    prevalence = rl.Prevalence.binary(POPULATION, sampling=float(sampling[1]))
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    rl.start_at_prevalence(model[2], prevalence)
    offset = -torch.as_tensor(prevalence.log_weights).float()
    optimizer, average = torch.optim.Adam(model.parameters(), lr=2e-3), torch.zeros(2)
    batches = draw(data, steps, sampling, torch.Generator().manual_seed(seed))
    for number, rows in enumerate(batches):
        logits = model(x[rows]) + offset
        loss = F.cross_entropy(logits, y[rows])
        if own:
            m = torch.softmax(logits, 1).mean(0)
            average = 0.9 * average + 0.1 * m.detach()
            q = average / (1 - 0.9 ** (number + 1))
            found = F.one_hot(y[rows], 2).float().mean(0)
            loss = loss + ((found - sampling.float()) * m / q).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def likelihood(model: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the expected log-likelihood at π."""
    rows = torch.log_softmax(model(x), 1).gather(1, y[:, None])[:, 0]
    return (1 - POPULATION) * float(rows[y == 0].mean()) + POPULATION * float(rows[y == 1].mean())


def trainings() -> list[list[str]]:
    """Return a row for each data set and kind of batch: mean log-likelihood at π on the other half, f and ρ, paired."""
    cells = []
    for name, (x, y) in data_sets().items():
        for size, stratified in ((8, False), (32, False), (8, True), (32, True)):
            values = []
            for seed in range(SEEDS):
                half = torch.rand(len(y), generator=torch.Generator().manual_seed(100 + seed)) < 0.5
                rows = [torch.nonzero(half & (y == k)).flatten() for k in range(2)]
                sampling = torch.tensor([0.5, 0.5], dtype=torch.float64)
                models = [train(x, y, (rows, size, stratified), sampling, own, seed) for own in (True, False)]
                values.append([likelihood(model, x[~half], y[~half]) for model in models])
            both = torch.tensor(values)
            gain = both[:, 1] - both[:, 0]
            means = [f"{value:.5f}" for value in both.mean(0)]
            kind = "stratified" if stratified else "i.i.d."
            cells.append([name, f"{size}, {kind}", *means, f"{gain.mean():+.5f} ± {gain.std() / SEEDS**0.5:.5f}"])
            print(cells[-1], flush=True)
    return cells


def rare() -> list[list[str]]:
    """Return the mean prediction over the right one, for batches of few rows that rarely hold the rare class."""
    x, y = data_sets()["LIDC features"]
    rows, sampling = [torch.nonzero(y == k).flatten() for k in range(2)], torch.tensor([0.99, 0.01], dtype=torch.float64)
    cells = []
    for size in (4, 32):
        ratios = torch.zeros(2, 4)
        for seed in range(4):
            for form, own in enumerate((True, False)):
                model = train(x, y, (rows, size, False), sampling, own, seed, 3000)
                with torch.no_grad():
                    probs = torch.softmax(model(x), 1)[:, 1]
                ratios[form, seed] = (
                    float(sum(share * probs[own].mean() for share, own in zip(sampling, rows, strict=True))) / 0.01
                )
        cells.append([str(size), *(f"{each.mean():.2f} ± {each.std() / 2:.2f}" for each in ratios)])
        print(cells[-1], flush=True)
    return cells


def main() -> None:
    one = ["rows", "batches", "form", "bias, % of ‖∇‖", "standard error", "worst z", "p of no bias", "variance (trace)"]
    parts = [
        "Made by `python benchmarks/label_frequencies.py`: r = ρ, κ = 1; f: the batch's label frequencies, ρ: the declared.",
        f"Gradient at exact q, {DRAWS:,} minibatches. The form ρ is logit adjustment, with its variance.",
        table(one, gradients()),
        f"Log-likelihood at π = {POPULATION}, held-out half, {STEPS} steps, {SEEDS} seeds; f has a running q.",
        table(["data", "rows in a batch", "f", "ρ", "ρ − f"], trainings()),
        "Mean prediction / right one where the rare class is 1 % of the labels, LIDC features, 3,000 steps, 4 seeds.",
        table(["rows in a batch", "f", "ρ"], rare()),
    ]
    page = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    (folder() / "label_frequencies.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
