"""How low a loss each optimizer reaches, at its own best learning rate."""
