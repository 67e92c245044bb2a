"""``cells:<flag>``: generated pictures of cells in the format of MedMNIST, a surrogate for medical data.

Each set has the classes, channels, splits and class imbalance of a MedMNIST v2 set (``counts``); the pictures are
drawn (``draw``). Five hospitals differ in stain, brightness, sharpness and noise. Pictures are made once into a
cache and checked whenever they are read; ``write_npz`` gives a file that any reader of MedMNIST takes.
"""

from __future__ import annotations

from pathlib import Path

import medmnist
import numpy as np

from fedlib import seeds
from fedlib.data import prepared
from fedlib.data.cells.counts import COUNTS
from fedlib.data.cells.draw import HOSPITALS, pictures
from fedlib.data.files import Found
from fedlib.data.imageset import SPLITS, Card, ImageSet, Split
from fedlib.errors import InputError, choose

SIZES = (28, 64)
FEWEST = 100  # training images
VERSION = 2  # of the pictures; a change of the drawing counts it up


def members() -> list[str]:
    """Return the flags behind ``cells:``."""
    return list(COUNTS)


def cards() -> list[Card]:
    """Return what is known about each set before it is loaded."""
    return [_card(flag) for flag in members()]


def load(
    flag: str, *, root: Path, download: bool, size: int = 28, train_images: int | None = 4000, seed: int = 0
) -> ImageSet:
    """Return a set's pictures; the first time on a machine they are generated.

    Args:
        flag: one of :func:`members`.
        root: without effect; the pictures are kept in the state folder.
        download: without effect.
        size: side of the pictures in pixels: 28 or 64.
        train_images: number of training pictures, up to rounding; None is that of the MedMNIST set. Validation and
            test are scaled alike, but have at least an eighth and half as many, as far as the MedMNIST set has
            them. The shares of the classes in each split are those of the MedMNIST set; every class has at least
            one picture.
        seed: of the generator. It says which data set is meant and is not the seed of an experiment.

    Raises:
        InputError: unknown flag or size, or a number out of range.
    """
    arrays = _arrays(flag, size, train_images, seed)
    splits = {key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"]) for key in SPLITS}
    names = medmnist.INFO[f"{_medmnist(flag)}"]["label"]
    return ImageSet(f"cells:{flag}", splits, [names[str(c)] for c in range(len(names))], _card(flag))


def domains(
    flag: str, *, root: Path, size: int = 28, train_images: int | None = 4000, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the hospital (0 to 4) of every picture, (n,) int64 by split; arguments as for :func:`load`."""
    arrays = _arrays(flag, size, train_images, seed)
    return {key: arrays[f"{key}_hospitals"] for key in SPLITS}


def find(flag: str, *, root: Path, size: int = 28, train_images: int | None = 4000, seed: int = 0) -> Found:
    """Say that the set is always there; ``where`` is the cache if the pictures have been made.

    Raises:
        InputError: unknown flag or size, or a number out of range.
    """
    path = _path(flag, size, train_images, seed)
    return Found(f"cells:{flag}", present=True, where=path if path.is_file() else None, what_to_do="")


def write_npz(
    path: Path, flag: str, *, size: int = 28, train_images: int | None = 4000, seed: int = 0
) -> Path:
    """Write the set as a MedMNIST file: ``<split>_images`` (n, s, s[, 3]), ``<split>_labels`` (n, 1), uint8."""
    arrays = _arrays(flag, size, train_images, seed)
    content = {f"{key}_labels": arrays[f"{key}_labels"].astype(np.uint8)[:, None] for key in SPLITS}
    for key in SPLITS:
        images = arrays[f"{key}_images"]
        content[f"{key}_images"] = images[..., 0] if images.shape[3] == 1 else images
    np.savez_compressed(path, **content)
    return path


def split_counts(flag: str, train_images: int) -> dict[str, np.ndarray]:
    """Return the number of pictures of each class by split, in the proportions of the MedMNIST set."""
    shares = {"test": COUNTS[flag]["train"]} | COUNTS[flag]
    official = medmnist.INFO[_medmnist(flag)]["n_samples"]
    scale = train_images / official["train"]
    found = {}
    for key, least in (("train", 1.0), ("val", 1 / 8), ("test", 1 / 2)):
        # scaled alone, a small set would have a handful of test pictures: OCTMNIST has 1,000 for 97,477
        size = max(official[key] * scale, min(official[key], train_images * least))
        counts = np.array(shares[key]) * size / sum(shares[key])
        found[key] = np.maximum(np.rint(counts).astype(int), 1)
    return found


def _arrays(flag: str, size: int, train_images: int | None, seed: int) -> dict[str, np.ndarray]:
    path = _path(flag, size, train_images, seed)
    return prepared.once(path, lambda: _make(flag, size, _number(flag, train_images), seed))


def _make(flag: str, size: int, train_images: int, seed: int) -> dict[str, np.ndarray]:
    grey = medmnist.INFO[_medmnist(flag)]["n_channels"] == 1
    arrays = {}
    for key, counts in split_counts(flag, train_images).items():
        draw = seeds.rng(seed, "cells", flag, key, "order")
        labels = draw.permutation(np.repeat(np.arange(len(counts)), counts))
        where = draw.integers(0, HOSPITALS, len(labels))
        arrays[f"{key}_images"] = pictures(flag, len(counts), labels, where, size, grey, seed, key)
        arrays[f"{key}_labels"] = labels.astype(np.int64)
        arrays[f"{key}_hospitals"] = where.astype(np.int64)
    return arrays


def _path(flag: str, size: int, train_images: int | None, seed: int) -> Path:
    choose("size", size, SIZES)
    number = _number(flag, train_images)
    for name, value, least in (("train_images", number, FEWEST), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is {value!r}; allowed: an integer >= {least}")
    return prepared.path_of(f"cells-{flag}-{size}", number, seed, VERSION)


def _number(flag: str, train_images: int | None) -> int:
    choose("cells flag", flag, members())
    return sum(COUNTS[flag]["train"]) if train_images is None else train_images


def _medmnist(flag: str) -> str:
    return "organamnist" if flag == "organa" else f"{flag}mnist"


def _card(flag: str) -> Card:
    info = medmnist.INFO[_medmnist(flag)]
    return Card(
        name=f"cells:{flag}",
        title=f"Cells in the format of {info['python_class']} (generated)",
        kind="surrogate",
        source="Cells, generated by fedlib.data.cells: drawn outlines, nuclei, textures and stains",
        licence="that of the library; no third-party data",
        citation="Nothing to cite: a surrogate that this library generates.",
        notes=(
            f"Classes, channels and class imbalance are those of {info['python_class']}; the pictures are not.",
            "Each class is a point in a space of shapes, textures and colours, around which its pictures scatter.",
            "Five hospitals differ in stain, brightness, sharpness and noise.",
            "Accuracies say nothing about medical pictures.",
        ),
    )
