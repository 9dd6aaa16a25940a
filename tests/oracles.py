"""Packages that tests compare with, and that warn when they are imported."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "The Tensor default of the field", FutureWarning)  # tensordict's, on each state's class
    import posteriors as posteriors
