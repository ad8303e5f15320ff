"""The paper's three workloads: networks, data, training, search and finals."""
