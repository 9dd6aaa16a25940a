"""Results of a study → one page that opens anywhere, its figures, and the same as Markdown."""

from .writing import write_report as write_report
