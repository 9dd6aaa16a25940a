"""Results and summary of a study → tables, figures, and one self-contained page."""

from .export import print_summary as print_summary
from .export import write_tables as write_tables
from .page import write_report as write_report
from .tables import Table as Table
from .tables import tables as tables
