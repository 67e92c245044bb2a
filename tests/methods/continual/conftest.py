"""Tiny images in classes with a pattern each, and tiny networks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlib import seeds
from fedlib.data.tensors import Normalizer
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.harness import Result, Suite, grow, run
from fedlib.methods.continual.strategy import Context, Net, Strategy
from fedlib.methods.continual.training import Training
from fedlib.models import Classifier

CLASSES, SIDE = 5, 8
TASKS = ((2, 3), (0, 1, 4))
BRIEF = Training(epochs=2, batch_size=16, lr=0.05, patience=None, augment=False)


def make_blobs(count: int, seed: int, classes: int = CLASSES, noise: float = 25.0) -> ImageData:
    patterns = seeds.rng(3, "patterns").normal(0, 45, (classes, 2, 2, 1))
    random = seeds.rng(seed, "blobs")
    labels = random.permutation(np.arange(count) % classes)
    shape = (count, SIDE, SIDE, 1)
    images = 128 + patterns.repeat(4, 1).repeat(4, 2)[labels] + random.normal(0, noise, shape)
    return ImageData(
        np.clip(images, 0, 255).astype(np.uint8), labels.astype(np.int64), Normalizer((0.5,), (0.15,))
    )


def make_encoder(norm: bool = True, dropout: float = 0.0, seed: int = 0) -> Classifier:
    parts: list[nn.Module] = []
    with seeds.torch_global(seed, "tiny"):
        for inputs, outputs in ((1, 8), (8, 8)):
            parts += [nn.Conv2d(inputs, outputs, 3, padding=1), *([nn.BatchNorm2d(outputs)] if norm else [])]
            parts += [nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout)]
        return Classifier(nn.Sequential(*parts, nn.Flatten()), 8 * (SIDE // 4) ** 2, 2)


def make_context(
    net: Net, data: ImageData, tasks: tuple[tuple[int, ...], ...] = TASKS, ce_scope: str = "seen"
) -> Context:
    return Context(net, BRIEF, ce_scope, tasks, 0, data)


def make_started(strategy: Strategy, data: ImageData, tasks: Any = TASKS, ce_scope: str = "seen") -> Any:
    """A strategy in its first task, in evaluation mode."""
    net = Net(make_encoder())
    strategy.start(make_context(net, data, tasks, ce_scope))
    grow(net, tasks[0], 0, 0)
    strategy.begin_task(of(data, tasks[0]))
    strategy.net.eval()
    return strategy


def of(data: ImageData, classes: tuple[int, ...]) -> ImageData:
    return data.subset(np.flatnonzero(np.isin(data.labels, classes)))


def next_task(strategy: Strategy, data: ImageData, tasks: Any = TASKS) -> None:
    """End the present task and begin the next one."""
    context = strategy.context
    strategy.end_task(of(data, tasks[context.t]))
    context.t += 1
    grow(context.net, tasks[context.t], 0, context.t)
    strategy.begin_task(of(data, tasks[context.t]))
    strategy.net.eval()


@pytest.fixture(scope="session")
def train() -> ImageData:
    return make_blobs(100, seed=1)


@pytest.fixture(scope="session")
def test() -> ImageData:
    return make_blobs(60, seed=2)


@pytest.fixture(scope="session")
def go(train: ImageData, test: ImageData) -> Callable[..., Result]:
    """Runs a strategy on two tasks of unequal sizes whose classes are not in order."""

    def runs(
        strategy: Strategy,
        ce_scope: str = "seen",
        training: Training = BRIEF,
        tasks: Any = TASKS,
        seed: int = 0,
        encoder: Classifier | None = None,
    ) -> Result:
        suite = Suite(training=training, ce_scope=ce_scope)  # type: ignore[arg-type]
        return run(strategy, encoder or make_encoder(dropout=0.2), train, test, tasks, suite, seed)

    return runs


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    return SimpleNamespace(
        blobs=make_blobs, encoder=make_encoder, context=make_context, started=make_started, of=of,
        next_task=next_task, tasks=TASKS, training=BRIEF,
    )  # fmt: skip


@pytest.fixture(scope="session")
def same_bits() -> Callable[[nn.Module, nn.Module], bool]:
    def same(a: nn.Module, b: nn.Module) -> bool:
        first, second = a.state_dict(), b.state_dict()
        return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)

    return same
