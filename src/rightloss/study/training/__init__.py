"""Train the runs of the grid and predict.

Stage: `Group` → `RunResult`s.

    models         nets by name
    batches        minibatches and low-level features that a group's runs share; random streams
    candidates     a run with one step size
    posteriors     posteriors over the weights of nets that read only features
    loop           the training loop, and the devices that it runs on
"""

from .loop import Hardware as Hardware
from .loop import train_group as train_group
