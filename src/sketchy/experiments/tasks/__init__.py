"""Small training tasks on real data: the same batches, models and validation split for every optimizer."""

from sketchy.experiments.tasks.registry import TASKS as TASKS
from sketchy.experiments.tasks.registry import load as load
from sketchy.experiments.tasks.task import Score as Score
from sketchy.experiments.tasks.task import Split as Split
from sketchy.experiments.tasks.task import Task as Task
