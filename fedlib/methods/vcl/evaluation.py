"""Accuracy of the heads on test features, in the three scopes of :mod:`fedlib.methods.continual.metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.continual.metrics import SCOPES, continual_scores, label_scores
from fedlib.methods.vcl.continual import HeadRun


@dataclass(frozen=True)
class Evaluation:
    """Results of a run of tasks with one encoder of the test images.

    Attributes:
        tasks: classes of each task.
        accuracy: by scope, (T, T) float64 in percent: row t, column i is the accuracy on task i's test samples
            after task t; 0 for a task whose classes the head does not have yet.
        samples: test samples of each task, (T,) int64.
        labels: (n,) int64, classes of the test samples of all tasks.
        predicted: by scope, (n,) int64, classes predicted after the last task.
    """

    tasks: tuple[tuple[int, ...], ...]
    accuracy: dict[str, np.ndarray]
    samples: np.ndarray
    labels: np.ndarray
    predicted: dict[str, np.ndarray]

    @property
    def trivial_tasks(self) -> tuple[int, ...]:
        """Tasks of one class, from 0: their task-aware accuracy is 100 by construction."""
        return tuple(t for t, task in enumerate(self.tasks) if len(task) == 1)

    def overall(self, scope: str = "cil") -> float:
        """Return the accuracy after the last task on the test samples of all tasks together, percent."""
        return 100 * float((self.predicted[scope] == self.labels).mean())

    def scores(self) -> dict[str, float]:
        """Return all scores, percent: ``<scope>_<name>`` of the continual ones, and those of the final labels.

        See ``continual_scores`` and ``label_scores`` of :mod:`fedlib.methods.continual.metrics`; ``accuracy`` is the
        paper's overall accuracy. Labels are predicted class-incrementally.
        """
        found = {
            f"{scope}_{name}": value
            for scope in SCOPES
            for name, value in continual_scores(self.accuracy[scope]).items()
        }
        num_classes = 1 + max(c for task in self.tasks for c in task)
        return found | label_scores(self.labels, self.predicted["cil"], num_classes)


def evaluate(run: HeadRun, features: Tensor | Mapping[int, Tensor], labels: np.ndarray) -> Evaluation:
    """Evaluate the head after each task.

    Args:
        run: the heads.
        features: test features of length 1, (N, d); or by client, each client's own, for an ensemble whose
            prediction is the mean softmax over the clients.
        labels: (N,) int64; samples of classes that are in no task are left out.

    Raises:
        InputError: a task without test samples, or sizes that differ.
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
    without = sorted(set(range(len(run.tasks))) - set(task_of[labels[used]].tolist()))
    if without:
        raise InputError(f"task {without[0] + 1} has no test sample; allowed: at least one for each task")
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
            accuracy[scope][t] = np.where(np.arange(total) <= t, 100 * hits / samples, 0.0)
            if t == total - 1:
                predicted[scope] = said
    return Evaluation(run.tasks, accuracy, samples, labels, predicted)


def _scores(logits: list[Tensor], allowed: Tensor) -> Tensor:
    """Return what to take the largest of: the logits, or the mean softmax over several encoders."""
    masked = [x.masked_fill(~allowed, -torch.inf) for x in logits]
    if len(masked) == 1:
        return masked[0]
    # a row without an allowed class has NaN here; its accuracy is not used
    return torch.stack([x.softmax(1) for x in masked]).mean(0).nan_to_num(0.0)
