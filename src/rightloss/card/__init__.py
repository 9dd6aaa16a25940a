"""One page about a model at a prevalence, and the parts that all pages of the package are made of."""
