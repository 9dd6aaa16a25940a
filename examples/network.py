"""Train a network on balanced lung nodules, for a screening programme where 1 nodule in 100 is malignant.

The features of the nodules ship with the package. No patient is in both parts.

    pip install -c constraints.txt -e ".[lidc]"
    python examples/network.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rightloss as rl
from rightloss import metrics
from rightloss.lidc import binary_set, train_valid_test

POPULATION = 0.01


def main() -> None:
    torch.manual_seed(0)
    nodules = binary_set()
    train, _, test = train_valid_test(nodules.labels, nodules.patients, fold=0, num_folds=5)
    x, y = nodules.standardised(train), nodules.labels
    prevalence = rl.Prevalence.binary(population=POPULATION, sampling=0.5)

    sampler = rl.RebalancedSampler(y[train], prevalence)  # as many malignant as benign nodules
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=128, sampler=sampler)

    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 2))
    rl.start_at_prevalence(model[-1], prevalence)
    criterion = rl.InformationGainLoss(prevalence)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, weight_decay=0.01)
    for _ in range(40):
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()

    with torch.no_grad():
        log_probs = model(x[test]).log_softmax(1)
    print(metrics.evaluate(log_probs, y[test], POPULATION, threshold=0.05))
    print(rl.check(model, (x[test], y[test]), prevalence, sampled=False))


if __name__ == "__main__":
    main()
