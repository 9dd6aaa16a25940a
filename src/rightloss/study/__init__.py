"""A grid of runs → results on disk → tables."""

from .population import FiveRatings as FiveRatings
from .population import TwoGaussians as TwoGaussians
from .toy import ToyConfig as ToyConfig
from .toy import run_study as run_study
