"""Measurements against peers, interleaved in one run. Never timed tests."""
