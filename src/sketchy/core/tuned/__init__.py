"""What is tuned to processors: orders of products, memory layouts, pieces that fit in a cache.

Each function here equals a plain formula up to rounding (`tests/core/test_tuned.py` puts the plain ones in
their place). Formulas live outside of this folder.
"""
