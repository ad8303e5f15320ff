"""ResNet-50 on pictures."""

from sketchy.experiments.workloads.resnet50.workload import ResNet50 as ResNet50
