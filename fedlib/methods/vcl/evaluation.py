"""Accuracy of the heads on test features, in the three scopes of :mod:`fedlib.methods.continual.metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.continual.metrics import SCOPES, AccuracyMatrix
from fedlib.methods.vcl.continual import HeadRun


def evaluate(
    run: HeadRun,
    features: Tensor | Mapping[int, Tensor],
    labels: np.ndarray,
    tasks: Sequence[Sequence[int]] | None = None,
) -> AccuracyMatrix:
    """Evaluate the head after each task and return the accuracies.

    Args:
        run: the heads.
        features: test features of length 1, (N, d); or by client, each client's own, for an ensemble that
            predicts by the mean softmax over the clients.
        labels: (N,) int64; samples of classes that are in no task are left out.
        tasks: by which one head that was trained on all classes at once is scored, in the last row of the
            matrix; None takes those of the run.

    Raises:
        InputError: a task without test samples, sizes that differ, or ``tasks`` with several heads.
    """
    views = [features] if isinstance(features, Tensor) else [features[k] for k in sorted(features)]
    if not views or any(len(view) != len(labels) for view in views):
        raise InputError(
            f"{[len(v) for v in views]} features and {len(labels)} labels; allowed: as many of each"
        )
    if tasks is not None and len(run.heads) > 1:
        raise InputError(f"tasks are given for {len(run.heads)} heads; allowed: for one")
    matrix = AccuracyMatrix(tasks or run.tasks, labels)
    if not matrix.samples.all():
        without = int((matrix.samples == 0).argmax())
        raise InputError(f"task {without + 1} has no test sample; allowed: at least one for each task")
    for n in range(len(run.heads)):
        head = run.head(n)
        with torch.no_grad():
            logits = [head(view[torch.from_numpy(matrix.rows)]) for view in views]
        if len(logits) > 1:
            logits = [torch.stack([x.double().softmax(1) for x in logits]).mean(0)]
        matrix.record(len(matrix.tasks) - len(run.heads) + n, logits[0].numpy(), head.classes)
    return matrix


def summary(matrix: AccuracyMatrix) -> dict[str, float]:
    """Return all scores, percent: ``<scope>_<name>`` of the tasks, and those of the final predictions.

    The latter are class-incremental; their ``accuracy`` is the paper's overall accuracy. A task of one class has
    task-aware accuracy 100 by construction.
    """
    found = {f"{scope}_{name}": x for scope in SCOPES for name, x in matrix.scores(scope).items()}
    return found | matrix.overall("cil")
