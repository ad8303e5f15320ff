"""Code tuned for processors: the order of products, memory layouts, pieces that fit in a cache.

Each function here equals a plain formula up to rounding. `tests/core/test_tuned.py` replaces the functions by
these formulas. There is no other math in this folder.
"""
