"""What all benchmarks share: options, timing, processes, results on disk."""
