"""Classifiers and scorers for scikit-learn, with the population's class frequencies as a constructor argument."""

from .coefficients import CoefficientTable as CoefficientTable
from .corrected import PrevalenceCorrectedClassifier as PrevalenceCorrectedClassifier
from .information_gain import InformationGainClassifier as InformationGainClassifier
from .ordinal import OrdinalClassifier as OrdinalClassifier
from .scorers import PrevalenceScorer as PrevalenceScorer
from .scorers import prevalence_scorer as prevalence_scorer
