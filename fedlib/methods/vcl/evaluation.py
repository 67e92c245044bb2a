"""Accuracy of the heads on test features, in three scopes of prediction.

taw   task-aware: among the classes of the sample's own task
cil   class-incremental: among all classes seen so far (the protocol of the paper's text)
all   among all rows of the head; differs from cil only for a head that has all classes from the start
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.vcl.continual import HeadRun

SCOPES = ("taw", "cil", "all")


@dataclass(frozen=True)
class Evaluation:
    """Results of a run of tasks with one encoder of the test images.

    Attributes:
        accuracy: by scope, (T, T) float64 in percent: row t, column i is the accuracy on task i's test samples
            after task t; 0 for a task whose classes the head does not have yet, NaN for one without test samples.
        samples: test samples of each task, (T,) int64.
        labels: (n,) int64, classes of the test samples of all tasks.
        predicted: by scope, (n,) int64, classes predicted after the last task.
    """

    accuracy: dict[str, np.ndarray]
    samples: np.ndarray
    labels: np.ndarray
    predicted: dict[str, np.ndarray]

    def overall(self, scope: str = "cil") -> float:
        """Return the accuracy after the last task on the test samples of all tasks together, percent."""
        return 100 * float((self.predicted[scope] == self.labels).mean())


def evaluate(run: HeadRun, features: Tensor | Mapping[int, Tensor], labels: np.ndarray) -> Evaluation:
    """Evaluate the head after each task.

    Args:
        run: the heads.
        features: test features of length 1, (N, d); or by client, each client's own, for an ensemble whose
            prediction is the mean softmax over the clients.
        labels: (N,) int64; samples of classes that are in no task are left out.

    Raises:
        InputError: no test sample of any task, or sizes that differ.
    """
    views = [features] if isinstance(features, Tensor) else [features[k] for k in sorted(features)]
    if not views or any(len(view) != len(labels) for view in views):
        raise InputError(
            f"{[len(v) for v in views]} features and {len(labels)} labels; allowed: as many of each"
        )
    num_classes = 1 + max(max(task) for task in run.tasks)
    task_of = np.full(max(num_classes, int(max(labels, default=0)) + 1), -1)
    for t, task in enumerate(run.tasks):
        task_of[list(task)] = t
    labels = np.asarray(labels)
    used = np.flatnonzero(task_of[labels] >= 0)
    if not len(used):
        raise InputError("no test sample belongs to a class of the tasks; allowed: at least one")
    labels = labels[used]
    own = torch.from_numpy(task_of[labels])
    rows = torch.from_numpy(used)
    total = len(run.tasks)
    samples = np.bincount(own.numpy(), minlength=total)
    accuracy = {scope: np.zeros((total, total)) for scope in SCOPES}
    predicted: dict[str, np.ndarray] = {}
    for t in range(total):
        head = run.head(t)
        with torch.no_grad():
            logits = [head(view[rows]) for view in views]
        row_task = torch.from_numpy(task_of[list(head.classes)])
        for scope in SCOPES:
            allowed = {
                "taw": row_task[None] == own[:, None],
                "cil": (row_task <= t).expand(len(own), -1),
                "all": torch.ones(len(own), len(row_task), dtype=torch.bool),
            }[scope]
            said = np.asarray(head.classes)[_scores(logits, allowed).argmax(1).numpy()]
            hits = np.bincount(own.numpy(), weights=said == labels, minlength=total)
            with np.errstate(invalid="ignore"):
                share = np.where(samples > 0, 100 * hits / samples, np.nan)
            accuracy[scope][t] = np.where(np.arange(total) <= t, share, 0.0)
            if t == total - 1:
                predicted[scope] = said
    return Evaluation(accuracy, samples, labels, predicted)


def _scores(logits: list[Tensor], allowed: Tensor) -> Tensor:
    """Return what to take the largest of: the logits, or the mean softmax over several encoders."""
    masked = [x.masked_fill(~allowed, -torch.inf) for x in logits]
    if len(masked) == 1:
        return masked[0]
    # a row without an allowed class has NaN here; its accuracy is not used
    return torch.stack([x.softmax(1) for x in masked]).mean(0).nan_to_num(0.0)
