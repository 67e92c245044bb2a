"""The one interface of all methods, and the network that they train.

A method is a dataclass: its fields are its options, what it remembers is set by ``start``. It says how it differs
from fine-tuning by overriding some of

    begin_task -> (loss -> after_backward -> after_step) for each batch -> end_task

Hooks run in evaluation mode or leave the mode alone, and draw from streams of their own, so that a method of
strength zero gives the same bits as fine-tuning.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.metrics import SCOPES
from fedlib.methods.continual.training import Training, fit
from fedlib.methods.vcl.head import GrowingHead
from fedlib.models import Classifier, Embedder

EVALUATED = 256  # images at a time


class Net(nn.Module):
    """Feature network and one linear head that grows: logits = head(encoder(x)).

    Args:
        encoder: gives features; the head of a Classifier is left out.
    """

    def __init__(self, encoder: Classifier | Embedder) -> None:
        super().__init__()
        self.encoder = encoder.backbone if isinstance(encoder, Classifier) else encoder
        self.head = GrowingHead(encoder.feature_dim)

    def features(self, x: Tensor) -> Tensor:
        """Return the features (B, d) of images (B, channels, H, W)."""
        z: Tensor = self.encoder(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, rows)."""
        logits: Tensor = self.head(self.features(x))
        return logits


@dataclass
class Context:
    """Where a run stands.

    Attributes:
        net: the network.
        training: the suite's settings.
        ce_scope: rows of the head in the cross-entropy: ``current`` task only, or all ``seen``.
        tasks: classes of each task.
        seed: of the run.
        data: training data of the first task; for shapes and normalisation.
        t: the present task, 0-based.
    """

    net: Net
    training: Training
    ce_scope: str
    tasks: tuple[tuple[int, ...], ...]
    seed: int
    data: ImageData
    t: int = 0

    def generator(self, *path: int | str) -> torch.Generator:
        """Return a generator of the present task that no training uses."""
        return seeds.torch_generator(self.seed, "hooks", self.t, *path)


@dataclass(kw_only=True)
class Strategy:
    """Fine-tuning; the methods override what they do differently."""

    label: ClassVar[str] = "Finetune"
    category: ClassVar[str] = "B"  # B bound, R regularisation, E expansion, replay (of samples), G generative
    stores: ClassVar[str] = "nothing"
    all_rows: ClassVar[bool] = False  # cross-entropy over all seen rows, whatever the suite says
    tracks_steps: ClassVar[bool] = False

    context: Context = field(init=False, repr=False)

    @classmethod
    def small(cls) -> Self:
        """Return the method with a budget for small images on a CPU."""
        return cls()

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def adapt(self, training: Training) -> Training:
        """Return the settings that the method trains with."""
        return training

    @property
    def net(self) -> Net:
        """The network."""
        return self.context.net

    def network(self) -> list[nn.Module]:
        """Return the modules that a prediction needs."""
        return [self.net]

    @property
    def place(self) -> tuple[int, int]:
        """Seed and task."""
        return self.context.seed, self.context.t

    @property
    def seen(self) -> int:
        """Number of rows of the head."""
        return len(self.net.head.classes)

    @property
    def old(self) -> int:
        """Number of rows of earlier tasks."""
        return self.seen - len(self.context.tasks[self.context.t])

    @property
    def rows(self) -> slice:
        """Rows of the head in the cross-entropy."""
        current = self.context.ce_scope == "current" and not self.all_rows
        return slice(self.old if current else 0, self.seen)

    @property
    def frozen_rows(self) -> int:
        """Rows that keep their values: those that are not in the cross-entropy."""
        return self.rows.start

    def start(self, context: Context) -> None:
        """Forget everything and begin a run.

        Raises:
            InputError: options that do not suit the run.
        """
        self.context = context

    def begin_task(self, data: ImageData) -> None:
        """Prepare for the present task; the head has its rows already."""

    def training_data(self, data: ImageData) -> ImageData:
        """Return what is trained on, given the present task's samples."""
        return data

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train on the present task and return a row for each epoch."""
        settings = self.adapt(self.context.training)
        return fit(self, self.training_data(data), validation, settings, method=self.label)

    def targets(self, y: Tensor) -> Tensor:
        """Return the head's rows of class labels (B,) int64."""
        return self.net.head.rows_of(y.cpu()).to(y.device)

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy () of logits (B, rows) over the rows of the present scope."""
        return functional.cross_entropy(logits[:, self.rows], self.targets(y) - self.rows.start)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the training loss () of a batch; free of side effects."""
        return self.cross_entropy(self.net(x), y)

    def after_backward(self) -> None:
        """Change the gradients before the step."""

    def after_step(self, old: State) -> None:
        """Look at a step; ``old`` are the parameters before it if ``tracks_steps``."""

    def end_task(self, data: ImageData) -> None:
        """Remember what later tasks need of the present one."""

    def state_dict(self) -> State:
        """Return what is kept between tasks besides the network, by name."""
        return {}

    def scores(self, x: Tensor) -> Tensor:
        """Return scores (B, rows), the larger the likelier, of images in evaluation mode."""
        logits: Tensor = self.net(x)
        return logits

    def predict(self, x: Tensor, scope: str = "cil", tasks: Tensor | None = None) -> Tensor:
        """Return the classes (B,) int64 of images (B, channels, H, W).

        Args:
            x: images.
            scope: ``taw``, ``cil`` or ``all``; the last two are the same because the head grows.
            tasks: task of each image (B,), for ``taw``.

        Raises:
            InputError: unknown scope, or ``taw`` without tasks.
        """
        with evaluation(self.net), torch.no_grad():
            scores = self.scores(x)
        if choose("scope", scope, SCOPES) == "taw":
            if tasks is None:
                raise InputError("scope is 'taw' but tasks are None; allowed: the task of each image")
            task_of = {c: t for t, task in enumerate(self.context.tasks) for c in task}
            own = torch.tensor([task_of[c] for c in self.net.head.classes], device=scores.device)
            scores = scores.masked_fill(own[None] != tasks[:, None], -torch.inf)
        return torch.tensor(self.net.head.classes, device=scores.device)[scores.argmax(1)]


@contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block; afterwards every layer has its old mode."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def frozen_copy(module: nn.Module) -> Any:
    """Return a copy in evaluation mode whose parameters take no gradients."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def non_negative(**values: float) -> None:
    """Refuse options that are negative or not finite.

    Raises:
        InputError: naming the first of them.
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} is {value!r}; allowed: a number >= 0")


def concatenated(parts: list[ImageData]) -> ImageData:
    """Return the samples of all parts, which have one normalisation."""
    images = np.concatenate([part.images for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    return ImageData(images, labels, parts[0].normalizer, parts[0].device)


def embedded(net: Net, data: ImageData) -> Tensor:
    """Return the features (N, d) of all images in evaluation mode."""
    with evaluation(net), torch.no_grad():
        parts = [net.features(data.batch(rows)[0]) for rows in torch.arange(len(data)).split(EVALUATED)]
    return torch.cat(parts)


def prefixed(prefix: str, state: Mapping[str, Tensor]) -> State:
    """Return the tensors under ``prefix/name``."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}
