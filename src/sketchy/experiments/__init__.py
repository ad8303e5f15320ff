"""Data sets, models and runs: what the command line and the demo are made of."""
