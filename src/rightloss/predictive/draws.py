"""How sure an interval is to be: the check stands with the others of numbers, in `inference.steps`."""

from ..inference.steps import checked_level as checked_level
