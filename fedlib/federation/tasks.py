"""What is learned: the model, the loss, the predictions and their score.

The round loop knows a task only by the four functions of ``Task`` and data only by ``Data``; image
classification is here, detection adds its own pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.data.tensors import Normalizer
from fedlib.errors import InputError


class Data(Protocol):
    """Samples of one client or of a test set."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, indices: Tensor) -> Any:
        """Return the samples at ``indices`` (B,) int64 in the form that the task's loss takes."""


class Task(Protocol):
    """A learning problem."""

    def build_model(self, seed: int) -> nn.Module:
        """Return a new model; its initial values depend on ``seed`` alone."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean training loss () of a batch."""

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Return the predictions of a batch (numpy arrays); the model is in evaluation mode."""

    def score(self, data: Any, predictions: Sequence[Any]) -> dict[str, float]:
        """Return metrics by name from the predictions of all batches of ``data`` in order."""


@dataclass(frozen=True)
class ImageData:
    """Images and labels, normalised when a batch is taken.

    Attributes:
        images: (N, H, W, C) uint8.
        labels: (N,) int64.
        normalizer: the normalisation of the data set.
        device: where batches are put.
    """

    images: np.ndarray
    labels: np.ndarray
    normalizer: Normalizer
    device: str = "cpu"

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(self.images)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, C, H, W) float32 in channels_last and labels (B,) int64."""
        rows = indices.numpy()
        images = self.normalizer.apply(self.images[rows])
        return images.to(self.device), torch.from_numpy(self.labels[rows]).to(self.device)

    def subset(self, indices: np.ndarray) -> ImageData:
        """Return the samples at ``indices`` (n,)."""
        return ImageData(self.images[indices], self.labels[indices], self.normalizer, self.device)


@dataclass(frozen=True)
class Classification:
    """Image classification with cross-entropy.

    Attributes:
        model: function from a seed to a new model that maps images (B, C, H, W) to logits (B, K).
        num_classes: K.
        bf16: run the forward pass in bfloat16 (results then differ from float32 in the third digit).
    """

    model: Callable[[int], nn.Module]
    num_classes: int
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.bf16 and not torch.cuda.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise InputError(
                "bf16 is True, but this processor has no bfloat16 arithmetic; allowed here: False"
            )

    def build_model(self, seed: int) -> nn.Module:
        """Return a new model from ``seed``."""
        return self.model(seed)

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return model(images).float()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy () of images (B, C, H, W) and labels (B,)."""
        images, labels = batch
        return functional.cross_entropy(self._logits(model, images), labels)

    def predict(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> np.ndarray:
        """Return logits (B, K) float32."""
        return self._logits(model, batch[0]).cpu().numpy()

    def score(self, data: ImageData, predictions: Sequence[np.ndarray]) -> dict[str, float]:
        """Return loss, accuracy and the F1 and recall of each class; see ``classification_scores``."""
        logits = np.concatenate(predictions)
        labels = torch.tensor(data.labels)
        scores = {"loss": float(functional.cross_entropy(torch.from_numpy(logits), labels))}
        return scores | classification_scores(data.labels, logits.argmax(1), self.num_classes)


def classification_scores(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> dict[str, float]:
    """Return ``accuracy``, ``macro_f1``, and ``f1_<c>`` and ``recall_<c>`` of each class c.

    A class that is neither present nor predicted has F1 and recall 0 and is left out of ``macro_f1``.

    Args:
        labels: (N,) int64, true classes.
        predicted: (N,) int64, predicted classes.
        num_classes: K; labels and predictions are in 0..K-1.
    """
    # sklearn's confusion_matrix gives the same counts but takes 0.6 ms, and this runs several times a round.
    pairs = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    counts = pairs.reshape(num_classes, num_classes).astype(float)
    hit, true, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    f1 = 2 * hit / np.maximum(true + said, 1)
    recall = hit / np.maximum(true, 1)
    used = (true + said) > 0
    scores = {"accuracy": float(hit.sum() / counts.sum()), "macro_f1": float(f1[used].mean())}
    scores |= {f"f1_{c}": float(f1[c]) for c in range(num_classes)}
    return scores | {f"recall_{c}": float(recall[c]) for c in range(num_classes)}


def batches(data: Data, size: int, generator: torch.Generator) -> Iterator[tuple[Any, int]]:
    """Yield all samples in a random order: batches and their numbers of samples, ``size`` or fewer."""
    for indices in torch.randperm(len(data), generator=generator).split(size):
        yield data.batch(indices), len(indices)
