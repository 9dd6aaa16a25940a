"""A grid of runs → results on disk → tables, figures, one page.

The grid, in the order data flow:

    methods               the losses that are compared, by name
    config                what is run, frozen: `StudyConfig` → runs → groups of runs that share data, fold and seed; presets
    datasets              data sets, from the package or from files
    training              a group of runs → their predictions
    results               predictions of runs, on disk
    one_file              a finished study in one small file, and back
    engines               where groups are run: here, in other processes, on other machines
    execute               runs a study: only what is missing in its folder
    duration              how long that will take
    pooled_predictions    pools runs that differ only in fold and seed
    paper                 the paper's figures, for comparison
    summary               results → figures with intervals, findings in words, tables
    report                results, summary → one self-contained page

`toy` is separate: each loss where the truth is known, and under sampling biases that no loss here can correct.
"""

from .config import PRESETS as PRESETS
from .config import StudyConfig as StudyConfig
from .execute import run_study as run_study
from .one_file import read_one_file as read_one_file
from .one_file import write_one_file as write_one_file
from .results import StudyResults as StudyResults
from .results import read_study as read_study
from .toy import FiveRatings as FiveRatings
from .toy import ToyConfig as ToyConfig
from .toy import TwoGaussians as TwoGaussians
from .toy import run_toy as run_toy
