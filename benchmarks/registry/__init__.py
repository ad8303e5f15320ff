"""The optimizers and the parameter lists that benchmarks choose from by name."""
