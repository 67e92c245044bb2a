"""A client's data for its training: images or features, counted, embedded, and cut where nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.errors import InputError
from fedlib.features.gaussian import SMALLEST_NORM
from fedlib.federation.tasks import ImageData
from fedlib.methods.vcl.presets import Options

EMBED_BATCH = 256


@dataclass(frozen=True)
class FeatureData:
    """Vectors in the place of images: features of a frozen encoder, computed once.

    Attributes:
        features: (N, d) float32.
        labels: (N,) int64.
    """

    features: Tensor
    labels: np.ndarray

    def __post_init__(self) -> None:
        if self.features.dim() != 2 or len(self.features) != len(self.labels):
            raise InputError(
                f"features {tuple(self.features.shape)} and {len(self.labels)} labels; allowed: (N, d) and N"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, d) and labels (B,) int64."""
        return self.features[indices], torch.from_numpy(self.labels[indices.numpy()]).to(self.features.device)


Labelled = ImageData | FeatureData


def class_counts(data: Labelled, num_classes: int, client: int) -> Tensor:
    """Return the number of samples of each class at a client, int64 (C,).

    Raises:
        InputError: no samples, or a label that is no class; naming the client.
    """
    labels = np.asarray(data.labels)
    if not len(labels):
        raise InputError(f"client {client} has 0 samples; allowed: at least one")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise InputError(
            f"client {client} has labels {labels.min()} to {labels.max()}; allowed: 0 to {num_classes - 1}"
        )
    return torch.from_numpy(np.bincount(labels, minlength=num_classes)).long()


def balanced_rows(labels: np.ndarray, generator: torch.Generator) -> Tensor:
    """Return as many rows as there are labels, with replacement, each class of them equally likely, int64 (N,)."""
    y = torch.from_numpy(np.asarray(labels)).long()
    weights = 1 / torch.bincount(y).clamp_min(1).double()
    return torch.multinomial(weights[y], len(y), replacement=True, generator=generator)


def unit_features(encoder: nn.Module, data: Labelled) -> Tensor:
    """Return the features of all samples in evaluation mode, scaled to length 1, float32 (N, d), on the CPU."""
    z = embed_all(encoder, data)
    if not torch.isfinite(z).all():
        raise FloatingPointError(
            "the encoder gives features that are NaN or infinite: has training diverged?"
        )
    return functional.normalize(z, dim=1, eps=SMALLEST_NORM).cpu()


def embed_all(encoder: nn.Module, data: Labelled) -> Tensor:
    """Return the encoder's outputs for all samples in evaluation mode, (N, d); the mode is put back afterwards."""
    was_training = encoder.training
    encoder.eval().to(device_of(data))
    try:
        with torch.no_grad():
            return torch.cat(
                [encoder(data.batch(rows)[0]) for rows in torch.arange(len(data)).split(EMBED_BATCH)]
            )
    finally:
        encoder.train(was_training)


def trained_part(data: Labelled, encoder: nn.Module, options: Options) -> tuple[nn.Module, Labelled]:
    """Return the module to train and its inputs: what stays fixed is computed once, in evaluation mode.

    Raises:
        InputError: ``neck`` for an encoder that has none.
    """
    if options.trained_part == "all":
        return encoder, data
    if options.trained_part == "none":
        return nn.Identity(), FeatureData(embed_all(encoder, data), data.labels)
    neck, norm = getattr(encoder, "neck", None), getattr(encoder, "norm", None)
    if not isinstance(neck, nn.Module) or not isinstance(norm, nn.Module):
        raise InputError(f"trained is 'neck', but {type(encoder).__name__} has none; allowed: all, none")
    seen: list[Tensor] = []
    hook = neck.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        embed_all(encoder, data)
    finally:
        hook.remove()
    return nn.Sequential(neck, norm), FeatureData(torch.cat(seen), data.labels)


def output_dim(net: nn.Module, inputs: Labelled) -> int:
    """Return d, the length of the vectors that ``net`` gives."""
    was_training = net.training
    net.eval().to(device_of(inputs))
    with torch.no_grad():
        dim = net(inputs.batch(torch.arange(1))[0]).shape[1]
    net.train(was_training)
    return int(dim)


def device_of(data: Labelled) -> str | torch.device:
    """Return where batches are put."""
    return data.features.device if isinstance(data, FeatureData) else data.device
