"""The Conformer on speech."""

from sketchy.experiments.workloads.conformer.workload import Conformer as Conformer
