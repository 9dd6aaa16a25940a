"""Prevalence: class frequencies where a model is used (π) and where it is trained (ρ)."""

from .classes import ContinuousPrevalence as ContinuousPrevalence
from .classes import Density as Density
from .classes import Frequencies as Frequencies
from .classes import Mix as Mix
from .classes import PopulationEstimate as PopulationEstimate
from .classes import Prevalence as Prevalence
from .classes import PrevalenceWarning as PrevalenceWarning
from .classes import _rebuild as _rebuild  # pickles of version 0.2 name it
from .classes import class_frequencies as class_frequencies
from .classes import frequencies as frequencies
from .classes import log_mix as log_mix
from .classes import mix_of_every_class as mix_of_every_class
from .classes import without_estimate as without_estimate
from .multilabel import AnyPrevalence as AnyPrevalence
from .multilabel import FindingMix as FindingMix
from .multilabel import MultilabelPrevalence as MultilabelPrevalence
from .multilabel import PatternWeights as PatternWeights
from .multilabel import by_finding as by_finding
from .multilabel import check_findings as check_findings
from .multilabel import label_matrix as label_matrix
