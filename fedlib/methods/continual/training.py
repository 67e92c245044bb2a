"""Training on one task: SGD, a step size that falls when validation stops improving, the best state restored.

The schedule is that of Masana et al. 2022 (FACIL), which Derakhshani et al. 2022 (LifeLonger) use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData, batches
from fedlib.methods.federated.fedavg import batch_norm_layers
from fedlib.methods.oneshot.base import at_least, check
from fedlib.methods.oneshot.distillation import crop_and_flip

PADDING = 4  # pixels, of the random crops


@dataclass(frozen=True)
class Training:
    """Settings of the training on one task; the defaults are those of LifeLonger.

    Attributes:
        epochs: at most.
        batch_size: samples in a batch; the last one may be smaller.
        lr: first step size of SGD.
        momentum: of SGD.
        weight_decay: L2 penalty of SGD.
        patience: epochs without a lower validation loss after which the best state comes back and the step size
            falls; None for a fixed number of epochs, whose last state is kept.
        lr_factor: the step size falls to 1 / ``lr_factor``.
        lr_min: training ends when the step size would fall below it.
        milestones: shares of the epochs after which the step size falls to a tenth.
        clip: largest gradient norm; None for no limit.
        augment: random crops of images padded by 4 black pixels, and random flips.
        validation: share of a task's training data that is held back where no validation data are given.
    """

    epochs: int = 200
    batch_size: int = 32
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    patience: int | None = 5
    lr_factor: float = 3.0
    lr_min: float = 1e-4
    milestones: tuple[float, ...] = ()
    clip: float | None = None
    augment: bool = True
    validation: float = 0.1

    def __post_init__(self) -> None:
        at_least(self, {"epochs": 1, "batch_size": 1, "momentum": 0.0, "weight_decay": 0.0, "lr_min": 0.0})
        check(
            self,
            lr=(self.lr > 0, "above 0"),
            patience=(self.patience is None or self.patience >= 1, "at least 1, or None"),
            lr_factor=(self.lr_factor > 1, "above 1"),
            milestones=(all(0 < m < 1 for m in self.milestones), "shares between 0 and 1"),
            clip=(self.clip is None or self.clip > 0, "above 0, or None"),
            validation=(0 <= self.validation < 1, "at least 0 and below 1"),
        )


class Learner(Protocol):
    """What :func:`fit` asks of a method; see :class:`fedlib.methods.continual.strategy.Strategy`."""

    @property
    def net(self) -> Any:
        """Return the network."""

    @property
    def tracks_steps(self) -> bool:
        """Say whether ``after_step`` needs the parameters from before the step."""

    @property
    def frozen_rows(self) -> int:
        """Return how many of the head's first rows keep their values."""

    @property
    def place(self) -> tuple[int, int]:
        """Return the seed and the number of the task, 0-based."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss () of a batch."""

    def after_backward(self) -> None:
        """Change the gradients."""

    def after_step(self, old: State) -> None:
        """Look at the step from the parameters ``old``."""


def augmented(x: Tensor, data: ImageData, generator: torch.Generator) -> Tensor:
    """Return randomly cropped and flipped images; ``x`` (B, channels, H, W) are of ``data``."""
    channels = data.images.shape[3]
    black = data.normalizer.apply(np.zeros((1, 1, 1, channels), dtype=np.uint8)).to(x.device)
    cropped = crop_and_flip(x - black, PADDING, generator) + black  # padding adds zeros, which are black here
    return cropped.contiguous(memory_format=torch.channels_last)


def endless(
    data: ImageData, size: int, stream: Callable[[int], torch.Generator]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches for ever: all samples in a random order, then in another one.

    Args:
        data: at least one sample.
        size: samples in a batch; the last one of each pass may be smaller.
        stream: gives the generator of a pass.
    """
    turn = 0
    while True:
        for batch, _ in batches(data, size, stream(turn)):
            yield batch
        turn += 1


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradients, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def validation_loss(learner: Learner, data: ImageData, batch_size: int) -> float:
    """Return the mean loss in evaluation mode without gradients."""
    learner.net.eval()
    total = 0.0
    with torch.no_grad():
        for rows in torch.arange(len(data)).split(batch_size):
            total += float(learner.loss(*data.batch(rows)).detach()) * len(rows)
    return total / len(data)


def fit(
    learner: Learner,
    data: ImageData,
    validation: ImageData | None,
    settings: Training,
    stage: str = "main",
    method: str = "",
) -> list[dict[str, float]]:
    """Train ``learner.net`` in place; it ends in evaluation mode.

    Args:
        learner: gives the loss and the hooks.
        data: training samples.
        validation: decides on the step size and the best state; not needed without patience.
        settings: see :class:`Training`.
        stage: names the random stream of order and augmentation.
        method: for messages.

    Returns:
        A row of numbers for each epoch.

    Raises:
        FloatingPointError: the loss is not finite, naming method, task and epoch.
    """
    net, (seed, task), frozen = learner.net, learner.place, learner.frozen_rows
    parameters = trainable(net)
    optimizer = torch.optim.SGD(
        parameters.values(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    head = [p for p in (net.head.weight, net.head.bias) if p.requires_grad]
    kept = [p.detach()[:frozen].clone() for p in head]
    falls = {max(1, round(m * settings.epochs)) for m in settings.milestones}
    rate, patience = settings.lr, settings.patience
    waiting, best, best_state = patience, math.inf, model_state(net)
    history: list[dict[str, float]] = []
    with seeds.torch_global(seed, "dropout", stage, task):
        for epoch in range(settings.epochs):
            if epoch in falls:
                rate /= 10
            for group in optimizer.param_groups:
                group["lr"] = rate
            total = 0.0
            order = seeds.torch_generator(seed, "batches", stage, task, epoch)
            changes = seeds.torch_generator(seed, "augment", stage, task, epoch)
            for (x, y), size in batches(data, settings.batch_size, order):
                net.train()
                if size == 1:  # one sample has no batch statistics: it trains with the running ones
                    for layer in batch_norm_layers(net):
                        layer.eval()
                if settings.augment:
                    x = augmented(x, data, changes)
                optimizer.zero_grad()
                loss = learner.loss(x, y)
                loss.backward()
                learner.after_backward()
                for p in head:
                    if p.grad is not None:
                        p.grad[:frozen] = 0
                if settings.clip is not None:
                    nn.utils.clip_grad_norm_(parameters.values(), settings.clip)
                old = {n: p.detach().clone() for n, p in parameters.items()} if learner.tracks_steps else {}
                optimizer.step()
                with torch.no_grad():
                    for p, rows in zip(head, kept):
                        p[:frozen] = rows  # weight decay would shrink them
                learner.after_step(old)
                total += float(loss.detach()) * size
            row = {"epoch": float(epoch), "lr": rate, "train_loss": total / len(data)}
            if not math.isfinite(total):
                raise FloatingPointError(
                    f"{method}: the loss is not finite in epoch {epoch} of task {task}; "
                    f"a smaller lr than {settings.lr} or a smaller strength may help"
                )
            history.append(row)
            if patience is None or validation is None:
                continue
            row["validation_loss"] = validation_loss(learner, validation, 4 * settings.batch_size)
            assert waiting is not None
            if row["validation_loss"] < best:
                best, best_state, waiting = row["validation_loss"], model_state(net), patience
                continue
            waiting -= 1
            if waiting <= 0:
                rate /= settings.lr_factor
                if rate < settings.lr_min:
                    break
                waiting = patience
                net.load_state_dict(best_state)
    if patience is not None and validation is not None:
        net.load_state_dict(best_state)
    net.eval()
    return history
