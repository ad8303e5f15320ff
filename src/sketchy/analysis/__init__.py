"""Tools to analyse training: the memory of optimizers, and the spectra of gradient covariances."""
