"""Tools to analyse training: memory, spectra, counts of operations, and a check of the device at hand."""
