"""The settings of the paper's online experiments (Appendix A); light to import, for the command line."""

PAPER_LEARNERS = ("ogd", "adagrad", "s-adagrad", "rfd-son", "ada-fd", "fd-son")
GRID_RANGE = (1e-6, 1.0)  # of eta and of delta, log-spaced
GRID_POINTS = 49  # for eta alone with delta = 0, or 7 x 7 over eta and delta
SKETCH_SIZE = 10
