"""Results of a study → figures with intervals, comparisons, findings in words, tables."""

from .contract import Check as Check
from .contract import Comparison as Comparison
from .contract import Difference as Difference
from .contract import Row as Row
from .contract import Summary as Summary
from .export import write_tables as write_tables
from .layouts import Entry as Entry
from .layouts import Line as Line
from .layouts import Section as Section
from .layouts import Table as Table
from .layouts import tables as tables
from .summarise import summarise as summarise
from .terminal import print_summary as print_summary
