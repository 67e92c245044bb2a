"""Clients that know blobs: images with a pattern for each class, and noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedlib import models, seeds
from fedlib.data.tensors import Normalizer
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot.base import Problem
from fedlib.methods.oneshot.local_training import LocalTraining, train_clients

CLASSES, SIDE = 3, 8


def blobs(count: int, seed: int, classes: int = CLASSES, side: int = SIDE) -> ImageData:
    patterns = seeds.rng(0, "patterns").integers(0, 2, (classes, side // 4, side // 4, 1))
    patterns[:, 0, 0, 0] = np.arange(classes) % 2  # no two alike
    patterns[:, 1, 1, 0] = np.arange(classes) // 2
    random = seeds.rng(seed, "blobs")
    labels = random.permutation(np.arange(count) % classes)
    images = (
        60 + 130 * patterns.repeat(4, 1).repeat(4, 2)[labels] + random.normal(0, 25, (count, side, side, 1))
    )
    return ImageData(
        np.clip(images, 0, 255).astype(np.uint8), labels.astype(np.int64), Normalizer((0.5,), (0.5,))
    )


@pytest.fixture(scope="session")
def clients() -> list[ImageData]:
    data = blobs(240, seed=1)
    return [data.subset(np.arange(k, len(data), 2)) for k in range(2)]


@pytest.fixture(scope="session")
def test_data() -> ImageData:
    return blobs(150, seed=2)


@pytest.fixture(scope="session")
def problem(test_data: ImageData) -> Problem:
    return Problem.of(test_data, CLASSES)


@pytest.fixture(scope="session")
def trained(clients: list[ImageData], problem: Problem) -> list[models.Classifier]:
    settings = LocalTraining(epochs=6, batch_size=16, lr=0.05)
    return train_clients(["cnn3_bn"], clients, problem, settings, seed=0)


@pytest.fixture
def student() -> Callable[[], models.Classifier]:
    def build() -> models.Classifier:
        return models.build("cnn3_bn", num_classes=CLASSES, in_channels=1, image_size=SIDE, seed=9)

    return build
