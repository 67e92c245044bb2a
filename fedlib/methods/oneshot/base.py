"""What all one-shot methods share: the problem, the result, the upload, the score."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlib.errors import InputError
from fedlib.federation.ledger import SERVER, Ledger
from fedlib.federation.model_state import model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.metrics import label_scores


@dataclass(frozen=True)
class Problem:
    """What the server knows about the data: nothing but shapes, classes and the scale of the pixels.

    Attributes:
        num_classes: C.
        channels: of an image.
        image_size: side of the square images, pixels.
        mean: per channel, of the normalisation that the models expect; full scale is 1.
        std: per channel, of that normalisation.
    """

    num_classes: int
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, data: ImageData, num_classes: int) -> Problem:
        """Return the problem that ``data`` belong to.

        Raises:
            InputError: images that are not square.
        """
        _, height, width, channels = data.images.shape
        if height != width:
            raise InputError(f"images are {height} x {width} pixels; allowed: square ones")
        return cls(num_classes, channels, height, data.normalizer.mean, data.normalizer.std)

    def normalise(self, x: Tensor) -> Tensor:
        """Return images (B, channels, s, s) with values 0 to 1 in the scale that the models expect."""
        mean, std = (x.new_tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True)
class Result:
    """What a one-shot method leaves.

    Attributes:
        method: name of the method.
        model: the global model, in evaluation mode; maps images (B, channels, s, s) to logits (B, C).
        history: one row of numbers for each epoch or round at the server.
        ledger: everything that was sent.
        budget: the settings and the numbers of clients and classes; a score means little without them.
        note: what a reader has to know about the method.
    """

    method: str
    model: nn.Module
    history: list[dict[str, float]]
    ledger: Ledger
    budget: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def scores(self, data: ImageData, batch_size: int = 256) -> dict[str, float]:
        """Return the label scores of the global model on ``data``; see :func:`scores`."""
        return scores(self.model, data, batch_size)


def scores(model: nn.Module, data: ImageData, batch_size: int = 256) -> dict[str, float]:
    """Return the scores of :func:`fedlib.methods.continual.metrics.label_scores`, in percent.

    Among them are the constant-majority floor ``majority`` and the flag ``constant`` of a collapsed predictor. The
    number of classes is that of the logits; ``model`` maps images to logits (B, C).

    Raises:
        InputError: no data.
    """
    if not len(data):
        raise InputError("there are 0 images to score; allowed: at least one")
    predicted = logits(model, data, batch_size)
    return label_scores(data.labels, predicted.argmax(1), predicted.shape[1])


def logits(model: nn.Module, data: ImageData, batch_size: int = 256) -> np.ndarray:
    """Return the logits (N, C) of all images in evaluation mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = [model(data.batch(rows)[0]).cpu() for rows in torch.arange(len(data)).split(batch_size)]
    model.train(was_training)
    return torch.cat(parts).numpy()


def uploaded(models: Sequence[nn.Module]) -> Ledger:
    """Return the ledger of the one upload of every client's model.

    Raises:
        InputError: no client.
    """
    if not models:
        raise InputError("there are 0 clients; allowed: at least one")
    ledger = Ledger(most_uplinks=1)
    for client, model in enumerate(models):
        ledger.send(client, SERVER, 1, "weights", model_state(model))
    return ledger


def budget(problem: Problem, settings: Any, clients: int, **further: Any) -> dict[str, Any]:
    """Return the record of a run: all settings by name, clients, classes and the image size."""
    shape = {"clients": clients, "num_classes": problem.num_classes, "image_size": problem.image_size}
    return shape | dataclasses.asdict(settings) | further


def check(settings: Any, **allowed: tuple[bool, str]) -> None:
    """Refuse settings out of range.

    Args:
        settings: holds the values.
        allowed: for each name, whether its value will do, and what is allowed in words.

    Raises:
        InputError: naming the first value that will not do.
    """
    for name, (fine, words) in allowed.items():
        if not fine:
            raise InputError(f"{name} is {getattr(settings, name)!r}; allowed: {words}")


def at_least(settings: Any, limits: Mapping[str, float]) -> None:
    """Refuse values below their limits, and integers that are none.

    Raises:
        InputError: naming the first value that is too small.
    """
    for name, least in limits.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not value >= least or (isinstance(least, int) and value != int(value)):
            kind = "an integer" if isinstance(least, int) else "a number"
            raise InputError(f"{name} is {value!r}; allowed: {kind} >= {least}")


def check_labels(labels: np.ndarray, num_classes: int, client: int) -> None:
    """Refuse a client's labels that are no class.

    Raises:
        InputError: naming the client and the label.
    """
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise InputError(f"client {client} has the label {wrong[0]}; allowed: 0 to {num_classes - 1}")


def balanced_targets(count: int, num_classes: int) -> Tensor:
    """Return labels (count,) int64 in ascending order, each class as often as any other, give or take one."""
    return torch.arange(count) * num_classes // count


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters are."""
    return next(model.parameters()).device
