"""What a training run looks like from outside: the memory it needs, the spectra it shows."""
