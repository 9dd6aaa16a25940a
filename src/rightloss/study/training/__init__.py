"""Train the runs of the grid and predict.

Stage: `Group` → `RunResult`s.

    batches        minibatches and low-level features that a group's runs share; random streams
    candidates     a run with one step size, and its nets by name
    loop           the training loop, the devices that it runs on, and posteriors over the weights of nets of features
"""

from .loop import Hardware as Hardware
from .loop import train_group as train_group
