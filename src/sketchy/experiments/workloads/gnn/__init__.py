"""The graph network on molecules."""

from sketchy.experiments.workloads.gnn.workload import GNN as GNN
