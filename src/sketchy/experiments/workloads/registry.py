"""The workloads by name."""

from importlib import import_module
from typing import Any

from sketchy.experiments.workloads.workload import Workload

# where each class is: a workload and what it needs are imported when it is used
PLACES = {
    "gnn": "sketchy.experiments.workloads.gnn:GNN",
    "resnet50": "sketchy.experiments.workloads.resnet50:ResNet50",
    "conformer": "sketchy.experiments.workloads.conformer:Conformer",
}


def workload(name: str) -> Workload[Any]:
    if name not in PLACES:
        raise ValueError(f"workload={name!r}: no such workload; there are {', '.join(PLACES)}")
    module, _, cls = PLACES[name].partition(":")
    return getattr(import_module(module), cls)()
