"""One method on a sequence of tasks.

Suites fix what all methods of a table have in common::

    lifelonger   Derakhshani et al. 2022 (Table 6 of Barros et al. 2026); 200 exemplars for replay methods
    verma        Verma et al. 2023 (Tables 7 and 8); methods that store no samples. Its schedule is not known to
                 us and is taken to be the same.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.metrics import AccuracyMatrix
from fedlib.methods.continual.strategy import EVALUATED, Context, Net, Strategy, evaluation
from fedlib.methods.continual.training import Training
from fedlib.models import Classifier, Embedder

OCT_ORDER = (0, 3, 1, 2)
"""Order of OCTMNIST's classes in Verma et al. 2023: CNV and normal, then DME, then drusen."""


@dataclass(frozen=True)
class Suite:
    """What all methods of a comparison share.

    Attributes:
        name: of the suite.
        training: on each task.
        ce_scope: rows of the head in the cross-entropy of methods that do not settle it: those of the
            ``current`` task (the others then keep their values) or all ``seen``.
        stored_samples: whether methods may store samples.
    """

    name: Literal["lifelonger", "verma"] = "lifelonger"
    training: Training = field(default_factory=Training)
    ce_scope: Literal["current", "seen"] = "current"
    stored_samples: bool = True

    def __post_init__(self) -> None:
        choose("suite", self.name, ("lifelonger", "verma"))
        choose("ce_scope", self.ce_scope, ("current", "seen"))

    @classmethod
    def lifelonger(cls) -> Self:
        """Return the suite of Table 6."""
        return cls()

    @classmethod
    def verma(cls) -> Self:
        """Return the suite of Tables 7 and 8."""
        return cls("verma", ce_scope="seen", stored_samples=False)

    def small(self) -> Self:
        """Return the suite with a budget for small images on a CPU.

        Five epochs need a larger step size; flips and crops would hurt digits, and need longer training.
        """
        training = dataclasses.replace(
            self.training, epochs=5, lr=0.05, lr_min=1e-3, patience=3, augment=False
        )
        return dataclasses.replace(self, training=training)


@dataclass(frozen=True)
class Result:
    """What a run leaves.

    Attributes:
        method: label of the method.
        accuracy: in three scopes, with the predictions after the last task.
        history: rows of numbers, one for each task and epoch.
        stored_bytes: after each task, size of what the method keeps besides the network.
        parameters: after each task, parameters of what a prediction needs.
        budget: suite, options, classes and samples of each task, tasks of a single class, seed; a score means
            little without them.
        net: the network after the last task, in evaluation mode.
    """

    method: str
    accuracy: AccuracyMatrix
    history: list[dict[str, float]]
    stored_bytes: list[int]
    parameters: list[int]
    budget: dict[str, Any]
    net: Net

    def summary(self) -> dict[str, float]:
        """Return the scores of each scope, as ``cil/avg_acc``, and the overall ones, as ``overall/accuracy``."""
        row: dict[str, float] = {}
        for scope in ("taw", "cil", "all"):
            row |= {f"{scope}/{name}": value for name, value in self.accuracy.scores(scope).items()}
        return row | {f"overall/{name}": value for name, value in self.accuracy.overall("cil").items()}


def run(
    strategy: Strategy,
    encoder: Classifier | Embedder,
    train: ImageData,
    test: ImageData,
    tasks: Sequence[Sequence[int]],
    suite: Suite,
    seed: int,
    validation: ImageData | None = None,
) -> Result:
    """Train and test a method on one task after the other.

    Args:
        strategy: the method; it is started anew.
        encoder: where it starts from; it stays as it is.
        train: training samples of all tasks.
        test: test samples of all tasks.
        tasks: classes of each task, as :func:`fedlib.data.class_tasks.task_split` gives them.
        suite: what all methods have in common.
        seed: of the run: order of samples, augmentation, new rows of the head, and the method's own draws.
        validation: for the schedule; where it is None, a share of each task's training samples. A task without
            validation samples is trained for all epochs.

    Raises:
        InputError: a class without training samples, a task without test samples, tasks that overlap, or a method
            that the suite excludes.
        FloatingPointError: a loss that is not finite.
    """
    if strategy.category == "replay" and not suite.stored_samples:
        raise InputError(
            f"method {strategy.label} stores samples; allowed in suite {suite.name}: methods that store none"
        )
    matrix = AccuracyMatrix(tasks, test.labels)
    for t, task in enumerate(matrix.tasks):
        for c in task:
            if not (train.labels == c).any():
                raise InputError(f"class {c} of task {t} has 0 training samples; allowed: at least one")
        if not matrix.samples[t]:
            raise InputError(f"task {t} (classes {task}) has 0 test samples; allowed: at least one")
    net = Net(copy.deepcopy(encoder)).to(train.device)
    parts = [_split(train, validation, task, suite.training, seed) for task in matrix.tasks]
    strategy.start(Context(net, suite.training, suite.ce_scope, matrix.tasks, seed, parts[0][0]))
    history: list[dict[str, float]] = []
    stored, sizes = [], []
    tested = test.subset(matrix.rows)
    for t, (task, (data, held_back)) in enumerate(zip(matrix.tasks, parts)):
        strategy.context.t = t
        grow(net, task, seed, t)
        strategy.begin_task(data)
        rows = strategy.learn(data, held_back)
        history += [{"task": float(t), **row} for row in rows]
        strategy.end_task(data)
        stored.append(sum(x.numel() * x.element_size() for x in strategy.state_dict().values()))
        sizes.append(sum(p.numel() for part in strategy.network() for p in part.parameters()))
        matrix.record(t, score(strategy, tested), net.head.classes)
    budget = {
        "suite": dataclasses.asdict(suite),
        "options": strategy.options(),
        "seed": seed,
        "tasks": [list(task) for task in matrix.tasks],
        "single_class_tasks": list(matrix.single),
        "train_samples": [len(data) for data, _ in parts],
        "test_samples": matrix.samples.tolist(),
    }
    return Result(strategy.label, matrix, history, stored, sizes, budget, net.eval())


def _split(
    train: ImageData, validation: ImageData | None, task: Sequence[int], training: Training, seed: int
) -> tuple[ImageData, ImageData | None]:
    """Return a task's training and validation samples."""
    data = train.subset(np.flatnonzero(np.isin(train.labels, task)))
    if training.patience is None:
        return data, None
    if validation is not None:
        own = np.flatnonzero(np.isin(validation.labels, task))
        return data, validation.subset(own) if len(own) else None
    order = seeds.rng(seed, "validation", *task).permutation(len(data))
    count = int(training.validation * len(data))
    # Training keeps the samples in their order, so that the share held back does not change that of the others.
    return data.subset(np.sort(order[count:])), data.subset(np.sort(order[:count])) if count else None


def grow(net: Net, task: Sequence[int], seed: int, t: int) -> None:
    """Add the head's rows of a task: uniform within 1/sqrt(d), as torch initialises linear layers; biases 0."""
    dim = net.head.weight.shape[1]
    bound = 1 / math.sqrt(dim)
    rows = torch.rand(len(task), dim, generator=seeds.torch_generator(seed, "head", t))
    net.head.expand(task, (2 * rows - 1) * bound)


def score(strategy: Strategy, data: ImageData) -> np.ndarray:
    """Return the scores (N, rows) of all images in evaluation mode."""
    with evaluation(strategy.net), torch.no_grad():
        parts = [
            strategy.scores(data.batch(rows)[0]).cpu() for rows in torch.arange(len(data)).split(EVALUATED)
        ]
    return torch.cat(parts).numpy()
