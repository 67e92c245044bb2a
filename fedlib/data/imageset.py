"""The one type of every image data set, real or surrogate, and its card.

Images are kept as the bytes that were published (uint8, height x width x channels); scaling them is the job of
:class:`fedlib.data.tensors.Normalizer`. Everything is checked when it is made, so that no later layer has to.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, cast

import numpy as np

from fedlib.errors import InputError, choose

SPLITS = ("train", "val", "test")
MOST_CONSTANT = 0.01  # share of one-coloured images in a split above which it is taken for damaged
Kind = Literal["real", "surrogate"]


@dataclass(frozen=True)
class Card:
    """What a reader has to know about a data set before believing a number computed on it.

    Attributes:
        name: name under which :func:`fedlib.data.load` gives it.
        title: name for captions.
        kind: ``real``, or ``surrogate`` for data that this library generated.
        source: where the images come from.
        licence: licence of the images.
        citation: the publication to cite.
        notes: what was changed or found on loading, one sentence each.
        verified: whether a checksum that the publisher gives for the files was compared and was right.
        checksum: SHA-256 over all arrays; filled in by :attr:`ImageSet.card`.
    """

    name: str
    title: str
    kind: Kind
    source: str
    licence: str
    citation: str
    notes: tuple[str, ...] = ()
    verified: bool = False
    checksum: str = ""

    def __post_init__(self) -> None:
        choose("kind of data", self.kind, ("real", "surrogate"))


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels of one split; the arrays are read-only from here on.

    Attributes:
        images: uint8 (N, H, W, C), C = 1 (grey) or 3 (RGB).
        labels: int64 (N,), class numbers from 0.

    Raises:
        InputError: wrong type, shape or size, NaN, or a negative label.
    """

    images: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        images, labels = np.asarray(self.images), np.asarray(self.labels)
        _refuse_nan("images", images)
        _refuse_nan("labels", labels)
        if images.dtype != np.uint8:
            raise InputError(f"images have type {images.dtype}; allowed: uint8, values 0 to 255")
        if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
            raise InputError(f"images have shape {images.shape}; allowed: (N, H, W, C) with C = 1 or 3")
        if labels.dtype != np.int64:
            raise InputError(f"labels have type {labels.dtype}; allowed: int64")
        if labels.shape != (len(images),):
            raise InputError(
                f"labels have shape {labels.shape}; allowed: ({len(images)},), one for each image"
            )
        if len(images) == 0:
            raise InputError("the split is empty; allowed: at least one image")
        if labels.min() < 0:
            at = int(labels.argmin())
            raise InputError(f"label of image {at} is {labels[at]}; allowed: class numbers from 0")
        object.__setattr__(self, "images", _read_only(images))
        object.__setattr__(self, "labels", _read_only(labels))

    def __len__(self) -> int:
        return len(self.labels)


class ImageSet:
    """A classification data set: official splits, class names and a card.

    Attributes:
        name: as on the card.
        splits: ``train`` and ``test``, and ``val`` where the publisher has one.
        class_names: class c is called ``class_names[c]``.

    Raises:
        InputError: a split is missing or unknown, shapes differ between splits, a label has no class, or more
            than 1 % of a split's images have one colour only (black pictures of a damaged copy). Real sets do
            contain a few such images: these are kept and counted in a note on the card, and so are all of them
            where the publisher's checksum holds (``card.verified``).
    """

    def __init__(
        self, name: str, splits: Mapping[str, Split], class_names: Sequence[str], card: Card
    ) -> None:
        self.name = name
        self.splits = MappingProxyType({key: splits[key] for key in SPLITS if key in splits})
        self.class_names = tuple(class_names)
        for key in splits:
            choose("split", key, SPLITS)
        for key in ("train", "test"):
            if key not in splits:
                raise InputError(f"{name} has no split {key!r}; train and test are needed")
        if len(self.class_names) < 2 or len(set(self.class_names)) < len(self.class_names):
            raise InputError(
                f"{name} has class names {self.class_names}; allowed: two or more, all different"
            )
        for key, split in self.splits.items():
            if split.images.shape[1:] != self.shape:
                raise InputError(
                    f"{key} images of {name} have shape {split.images.shape[1:]}; train: {self.shape}"
                )
            if split.labels.max() >= self.num_classes:
                at = int(split.labels.argmax())
                raise InputError(
                    f"label of {key} image {at} of {name} is {split.labels[at]}; "
                    f"allowed: 0 to {self.num_classes - 1}"
                )
            if constant := constant_images(split.images):
                where = f"{len(constant)} of {len(split)} {key} images have one colour only (first: {constant[0]})"
                if len(constant) > MOST_CONSTANT * len(split) and not card.verified:
                    raise InputError(f"{name}: {where}; get a fresh copy from {card.source}")
                notes = (*card.notes, f"Kept as they are: {where}.")
                card = dataclasses.replace(
                    card, notes=tuple(dict.fromkeys(notes))
                )  # once, also after unpickling
        self._card = card

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return ImageSet, (self.name, dict(self.splits), self.class_names, self._card)

    @property
    def train(self) -> Split:
        """The training split."""
        return self.splits["train"]

    @property
    def test(self) -> Split:
        """The test split."""
        return self.splits["test"]

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return cast(tuple[int, int, int], self.train.images.shape[1:])

    @property
    def in_channels(self) -> int:
        """Channels: 1 (grey) or 3 (RGB)."""
        return self.shape[2]

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels.

        Raises:
            InputError: if the images are not square.
        """
        height, width, _ = self.shape
        if height != width:
            raise InputError(f"images of {self.name} are {height} x {width}; allowed here: square images")
        return height

    @cached_property
    def checksum(self) -> str:
        """SHA-256 (hex) over name, shape, type and bytes of every array, computed when first asked for."""
        digest = hashlib.sha256()
        for key, split in self.splits.items():
            for part, array in (("images", split.images), ("labels", split.labels)):
                digest.update(f"{key}/{part} {array.dtype.str} {array.shape}\n".encode())
                digest.update(array.data)
        return digest.hexdigest()

    @property
    def card(self) -> Card:
        """The card, with the checksum of the arrays."""
        return dataclasses.replace(self._card, checksum=self.checksum)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{key} {len(split):,}" for key, split in self.splits.items())
        return f"ImageSet({self.name!r}: {sizes}; {self.shape}, {self.num_classes} classes)"


def constant_images(images: np.ndarray) -> list[int]:
    """Return the indices of images (N, H, W, C) in which all pixels have the same colour."""
    found: list[int] = []
    step = max(1, 2**24 // max(1, images[0].size))  # bounds the temporary mask to 16 MiB
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        same = (chunk == chunk[:, :1, :1]).reshape(len(chunk), -1).all(axis=1)
        found += (start + np.flatnonzero(same)).tolist()
    return found


def _refuse_nan(what: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"{what} hold {int(np.isnan(array).sum())} NaN values; allowed: none")


def _read_only(array: np.ndarray) -> np.ndarray:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
