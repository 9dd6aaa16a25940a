"""Classifiers and scorers for scikit-learn, with the population's class frequencies as a constructor argument."""
