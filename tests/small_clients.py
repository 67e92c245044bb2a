"""Tiny clients and networks for tests of whole rounds: three brightnesses, inverted in odd clients."""

from __future__ import annotations

import numpy as np

from fedlib import models, seeds
from fedlib.data import Normalizer
from fedlib.federation.tasks import ImageData


def build(seed: int) -> models.Classifier:
    return models.build("cnn3_bn", num_classes=3, in_channels=1, image_size=8, seed=seed)


def client(index: int, size: int = 24) -> ImageData:
    draw = seeds.rng(0, "client", index)
    labels = draw.integers(0, 3, size)
    images = draw.integers(0, 80, (size, 8, 8, 1)) + 60 * labels[:, None, None, None]
    images = 255 - images if index % 2 else images
    return ImageData(images.astype(np.uint8), labels, Normalizer((0.5,), (0.25,)))
