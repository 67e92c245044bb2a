"""Small problems for the tests of VCL-FPFT; one torch thread, so that shared cores stay free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import models, seeds
from fedlib.data.tensors import Normalizer
from fedlib.features.gaussian import ClassGaussian, Mixture
from fedlib.federation.tasks import ImageData
from fedlib.methods.vcl.inputs import FeatureData
from fedlib.methods.vcl.presets import Options, preset
from fedlib.methods.vcl.server import GlobalModel, class_prior


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Problem:
    """Makers of data, encoders, options and server models."""

    dim = 16

    @staticmethod
    def images(labels: Sequence[int] | np.ndarray, seed: int = 0) -> ImageData:
        """Images of 8 x 8 pixels: a pattern of the class and noise."""
        y = np.asarray(labels, dtype=np.int64)
        patterns = seeds.rng(99).integers(40, 216, (20, 8, 8, 1))
        noise = seeds.rng(seed, "pixels").normal(0, 25, (len(y), 8, 8, 1))
        pixels = (patterns[y] + noise).clip(0, 255).astype(np.uint8)
        return ImageData(pixels, y, Normalizer((0.5,), (0.25,)))

    @staticmethod
    def encoder(client: int = 0) -> nn.Module:
        """The common initial encoder, with BatchNorm, into 16 dimensions."""
        return models.embedder("cnn3_bn", dim=16, in_channels=1, image_size=8, seed=0)

    @staticmethod
    def blobs(labels: np.ndarray, d: int = 16, noise: float = 0.15, seed: int = 0) -> FeatureData:
        """Features of length 1 around one direction of each class, the same for all seeds."""
        eps = torch.randn(len(labels), d, generator=seeds.torch_generator(seed, "blobs"))
        z = functional.normalize(Problem.centres(d)[labels] + noise * eps, dim=1)
        return FeatureData(z, labels.astype(np.int64))

    @staticmethod
    def centres(d: int = 16) -> Tensor:
        """Directions of 20 classes (20, d)."""
        return functional.normalize(torch.randn(20, d, generator=seeds.torch_generator(0, "centres")), dim=1)

    @staticmethod
    def options(name: str = "paper", **changes: object) -> Options:
        """Options with few steps."""
        quick: dict[str, object] = {
            "epochs": 3,
            "lr": 1e-3,
            "batch_size": 32,
            "synthetic_per_class": 60,
            "replay_per_class": 60,
            "head_epochs": 10,
            "head_lr": 1e-2,
            "head_batch_size": 32,
            "footnote_epochs": 2,
        }
        return preset(name, **(quick | changes))

    @staticmethod
    def model(counts: Sequence[int], d: int = 16, components: int = 1) -> GlobalModel:
        """A server's model of separated classes; a count of 0 is a class that no client sent."""
        mixtures = [
            Mixture(
                tuple(
                    ClassGaussian(Problem.centres(d)[c] + 0.05 * k, 0.1 * torch.eye(d), n)
                    for k in range(components)
                )
            )
            if n
            else None
            for c, n in enumerate(counts)
        ]
        held = torch.tensor(counts)
        prior = torch.zeros(len(counts), dtype=torch.float64)
        prior[held > 0] = class_prior(held[held > 0], 0.5, 0.05, 0.25)
        return GlobalModel(tuple(mixtures), prior)


@pytest.fixture(scope="session")
def problem() -> type[Problem]:
    return Problem
