"""Smaller versions of an image set, for machines that cannot train on all of it: fewer pixels, fewer images."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedlib.data.imageset import ImageSet, Split
from fedlib.errors import InputError


def smaller(images: ImageSet, side: int) -> ImageSet:
    """Return the set with images of ``side`` pixels, each the rounded mean of a block of the original.

    Args:
        images: square images.
        side: pixels; the original side is a multiple of it.

    Raises:
        InputError: a side that does not divide the original one.
    """
    whole = images.image_size
    if side < 1 or whole % side:
        allowed = [n for n in range(1, whole + 1) if whole % n == 0]
        raise InputError(f"image_size of {images.name} is {side}; allowed: {', '.join(map(str, allowed))}")
    block = whole // side

    def reduce(split: Split) -> Split:
        n, _, _, channels = split.images.shape
        blocks = split.images.reshape(n, side, block, side, block, channels)
        return Split(np.rint(blocks.mean(axis=(2, 4))).astype(np.uint8), split.labels)

    note = f"Reduced from {whole} to {side} pixels a side by means of blocks."
    return _with(images, {key: reduce(split) for key, split in images.splits.items()}, note)


def fewer(images: ImageSet, per_class: int) -> ImageSet:
    """Return the set with the first ``per_class`` training images of each class; tests stay as they are.

    Raises:
        InputError: ``per_class`` below 1.
    """
    if per_class < 1:
        raise InputError(f"train_per_class is {per_class}; allowed: at least 1")
    labels = images.train.labels
    rows = [np.flatnonzero(labels == c)[:per_class] for c in range(images.num_classes)]
    chosen = np.sort(np.concatenate(rows))
    splits = dict(images.splits) | {"train": Split(images.train.images[chosen], labels[chosen])}
    return _with(images, splits, f"The first {per_class} training images of each class.")


def _with(images: ImageSet, splits: dict[str, Split], note: str) -> ImageSet:
    card = dataclasses.replace(images.card, notes=(*images.card.notes, note), verified=False)
    return ImageSet(images.name, splits, images.class_names, card)
