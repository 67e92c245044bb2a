"""Scores of class-incremental learning, and of predictions on unbalanced classes.

a_{t,i} is the accuracy, in percent, on the test samples of task i after training task t, in a scope of prediction:

    taw   task-aware: among the classes of the sample's own task
    cil   class-incremental: among all classes seen so far
    all   among all rows of the head; differs from cil only for a head that has all classes from the start
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import f1_score

from fedlib.data.class_tasks import single_class_tasks
from fedlib.errors import InputError, choose

SCOPES = ("taw", "cil", "all")
CONSTANT = 0.99  # a predictor that gives one class to more than this share of the samples has collapsed


class AccuracyMatrix:
    """Accuracies a_{t,i} in the three scopes, filled one row after each task.

    Args:
        tasks: classes of each task, T of them.
        labels: (N,) int64, classes of the test samples; samples of classes in no task are left out.

    Attributes:
        values: by scope, (T, T) float64, percent; 0 above the diagonal and in rows still to come, NaN for a
            task without test samples.
        samples: (T,) int64, test samples of each task.
        labels: (n,) int64, of the test samples that count; ``rows`` (n,) are their places among all N.
        predicted: by scope, (n,) int64, classes predicted after the latest task.
        single: tasks of one class, 0-based. Their task-aware accuracy is 100 whatever the predictor says, or 0
            before its head has a row for the class.

    Raises:
        InputError: no test sample of any task, no task, a class in two tasks, or a negative class.
    """

    def __init__(self, tasks: Sequence[Sequence[int]], labels: np.ndarray) -> None:
        self.tasks = tuple(tuple(int(c) for c in task) for task in tasks)
        classes = [c for task in self.tasks for c in task]
        if not all(self.tasks) or not classes or len(set(classes)) < len(classes):
            raise InputError(f"tasks are {self.tasks}; allowed: at least one, each class in one of them only")
        labels = np.asarray(labels, dtype=np.int64)
        if (labels < 0).any() or min(classes) < 0:
            raise InputError(
                f"class {min(*classes, *labels.tolist())} is among tasks or labels; allowed: class numbers from 0"
            )
        self._task_of = np.full(max([*classes, *labels.tolist()]) + 1, -1)
        for t, task in enumerate(self.tasks):
            self._task_of[list(task)] = t
        self.rows = np.flatnonzero(self._task_of[labels] >= 0)
        if not len(self.rows):
            raise InputError("no test sample belongs to a class of the tasks; allowed: at least one")
        self.labels = labels[self.rows]
        self._own = self._task_of[self.labels]  # (n,)
        total = len(self.tasks)
        self.samples = np.bincount(self._own, minlength=total)
        self.values = {scope: np.zeros((total, total)) for scope in SCOPES}
        self.predicted: dict[str, np.ndarray] = {}
        self.single = single_class_tasks(self.tasks)

    def record(self, t: int, scores: np.ndarray, classes: Sequence[int]) -> None:
        """Fill row t, 0-based.

        Args:
            t: the task that was trained last.
            scores: (n, rows), the larger the likelier; of the samples ``self.rows``.
            classes: class of each column of the scores.

        Raises:
            InputError: scores of another shape, or not finite.
        """
        if scores.shape != (len(self.labels), len(classes)):
            raise InputError(f"scores have shape {scores.shape}; allowed: {(len(self.labels), len(classes))}")
        if len(bad := scores[~np.isfinite(scores)]):
            raise InputError(
                f"scores after task {t} hold {bad[0]}; allowed: finite values. Has training diverged?"
            )
        column_task = self._task_of[list(classes)]
        allowed = {
            "taw": column_task[None] == self._own[:, None],
            "cil": np.broadcast_to(column_task <= t, scores.shape),
            "all": np.ones(scores.shape, dtype=bool),
        }
        for scope in SCOPES:
            # The first of equal scores wins in every scope, so that cil can never be above taw.
            said = np.asarray(classes)[np.where(allowed[scope], scores, -np.inf).argmax(1)]
            hits = np.bincount(self._own, weights=said == self.labels, minlength=len(self.tasks))
            with np.errstate(invalid="ignore"):
                share = np.where(self.samples > 0, 100 * hits / self.samples, np.nan)
            self.values[scope][t] = np.where(np.arange(len(self.tasks)) <= t, share, 0.0)
            self.predicted[scope] = said

    def scores(self, scope: str) -> dict[str, float]:
        """Return :func:`continual_scores` of a scope.

        Raises:
            InputError: unknown scope.
        """
        return continual_scores(self.values[choose("scope", scope, SCOPES)])

    def overall(self, scope: str = "cil") -> dict[str, float]:
        """Return :func:`label_scores` after the latest task on the test samples of all tasks together.

        In the scope taw a constant predictor knows the task, too: ``majority`` is the accuracy of always naming
        the most frequent class of the sample's own task, and ``constant`` says whether in every task of several
        classes one class takes more than 99 % of the predictions.

        Raises:
            InputError: unknown scope.
        """
        predicted = self.predicted[choose("scope", scope, SCOPES)]
        found = label_scores(self.labels, predicted, len(self._task_of))
        if scope != "taw":
            return found
        several = [self._own == t for t, n in enumerate(self.samples) if n and t not in self.single]
        constant = all(np.bincount(predicted[own]).max() > CONSTANT * own.sum() for own in several)
        return found | {
            "majority": 100 * float(self._largest().sum() / len(self.labels)),
            "constant": float(bool(several) and constant),
        }

    def constant_average(self, scope: str = "cil") -> float:
        """Return the highest average accuracy over the tasks, percent, of a predictor that always names one class.

        In the scope taw it names one class of each task. Tasks without test samples do not count.

        Raises:
            InputError: unknown scope.
        """
        shares = self._largest()[self.samples > 0] / self.samples[self.samples > 0]
        best = shares.mean() if choose("scope", scope, SCOPES) == "taw" else shares.max() / len(shares)
        return 100 * float(best)

    def _largest(self) -> np.ndarray:
        """Return the test samples of the most frequent class of each task, (T,)."""
        counts = np.bincount(self.labels, minlength=len(self._task_of))
        return np.array([counts[list(task)].max() for task in self.tasks])


def continual_scores(matrix: np.ndarray) -> dict[str, float]:
    """Return average accuracy, forgetting and backward transfer of an accuracy matrix.

        avg_acc           1/T sum_i a_{T,i}
        forgetting_paper  1/(T-1) sum_{i<T} (max_{t=1..T} a_{t,i} - a_{T,i}), never negative
        forgetting_code   the same with the maximum over t = 1..T-1; negative where the last task helps
        bwt               1/(T-1) sum_{i<T} (a_{T,i} - a_{i,i})

    The last three are NaN for one task. The paper's forgetting is Barros et al. 2026, section 4; the other one is
    that of its public code and of Masana et al. 2022.

    Args:
        matrix: (T, T) percent, row t after task t; entries above the diagonal are not used.

    Raises:
        InputError: a matrix that is not square, or entries on or below the diagonal that are no percentages.
    """
    a = np.asarray(matrix, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not len(a):
        raise InputError(f"accuracy matrix has shape {a.shape}; allowed: (T, T)")
    seen = np.tril(np.ones_like(a, dtype=bool))
    for t, i in zip(*np.nonzero(seen & ~((a >= 0) & (a <= 100)))):
        raise InputError(f"accuracy on task {i} after task {t} is {a[t, i]}; allowed: 0 to 100")
    a = np.where(seen, a, 0.0)
    last, before = a[-1], slice(0, len(a) - 1)
    scores = {"avg_acc": float(last.mean())}
    if len(a) == 1:
        return scores | dict.fromkeys(("forgetting_paper", "forgetting_code", "bwt"), float("nan"))
    return scores | {
        "forgetting_paper": float((a.max(0) - last)[before].mean()),
        "forgetting_code": float((a[:-1].max(0) - last)[before].mean()),
        "bwt": float((last - a.diagonal())[before].mean()),
    }


def label_scores(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> dict[str, float]:
    """Return scores of predictions, in percent, with the floor that they stand beside.

    ``accuracy``, ``balanced_accuracy`` (mean recall of the classes that occur), ``macro_f1`` (over classes that
    occur or are predicted), ``majority`` (accuracy of always saying the most frequent class), ``constant`` (1 if
    one class takes more than 99 % of the predictions, else 0: such a predictor has collapsed).

    Args:
        labels: (N,) int64, true classes.
        predicted: (N,) int64.
        num_classes: C; labels and predictions are in 0..C-1.

    Raises:
        InputError: no sample, unequal lengths, or classes out of range.
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if labels.shape != predicted.shape or labels.ndim != 1 or not len(labels):
        raise InputError(
            f"labels {labels.shape} and predictions {predicted.shape}; allowed: as many of each, at least one"
        )
    for name, values in (("label", labels), ("prediction", predicted)):
        if values.min() < 0 or values.max() >= num_classes:
            worst = values.min() if values.min() < 0 else values.max()
            raise InputError(f"{name} is {worst}; allowed: 0 to {num_classes - 1}")
    present = np.unique(labels)
    recalls = [float((predicted[labels == c] == c).mean()) for c in present]
    said = np.bincount(predicted, minlength=num_classes)
    return {
        "accuracy": 100 * float((labels == predicted).mean()),
        "balanced_accuracy": 100 * float(np.mean(recalls)),
        "macro_f1": 100 * float(f1_score(labels, predicted, average="macro", zero_division=0)),
        "majority": 100 * float(np.bincount(labels).max() / len(labels)),
        "constant": float(said.max() / len(predicted) > CONSTANT),
    }
