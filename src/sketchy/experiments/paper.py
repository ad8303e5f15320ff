"""The settings of the paper's online experiments (Appendix A). It does not import torch."""

PAPER_LEARNERS = ("ogd", "adagrad", "s-adagrad", "rfd-son", "ada-fd", "fd-son")
GRID_RANGE = (1e-6, 1.0)  # of eta and of delta, log-spaced
GRID_POINTS = 49  # 49 values of eta with delta = 0, or a 7 x 7 grid of eta and delta
SKETCH_SIZE = 10
