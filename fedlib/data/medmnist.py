"""``medmnist:<flag>``: the single-label 2D sets of MedMNIST v2 (Yang et al., Scientific Data, 2023).

Facts about each set (classes, channels, sizes, checksums, addresses) come from the package ``medmnist``. Files
are ``<flag>.npz`` (28 pixels) or ``<flag>_<size>.npz``, in the data folder or in ``medmnist`` below it. A file
whose MD5 is the official one makes a *verified* card; any other file is read too, with the same checks of its
contents, and the card says that it is not the official one.

ChestMNIST is refused: its images carry 14 yes/no findings each, and everything here has one class per image.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import medmnist
import numpy as np

from fedlib.data.files import Found, fetch, md5, reading
from fedlib.data.imageset import SPLITS, Card, ImageSet, Split
from fedlib.errors import InputError, choose

SIZES = (28, 64, 128, 224)
CITATION = (
    "J. Yang, R. Shi, D. Wei, Z. Liu, L. Zhao, B. Ke, H. Pfister, B. Ni. MedMNIST v2: a large-scale lightweight "
    "benchmark for 2D and 3D biomedical image classification. Scientific Data 10, 41, 2023."
)


def members() -> list[str]:
    """Return the flags behind ``medmnist:``: every 2D set with one label per image."""
    return [
        flag
        for flag, info in medmnist.INFO.items()
        if not flag.endswith("3d") and not info["task"].startswith("multi-label")
    ]


def cards() -> list[Card]:
    """Return what is known about each set before it is loaded, for images of 28 pixels."""
    return [_card(flag, 28) for flag in members()]


def load(flag: str, *, root: Path, download: bool, size: int = 28, as_rgb: bool = False) -> ImageSet:
    """Load a set at one of its sizes.

    Args:
        flag: one of :func:`members`.
        root: folder that holds the npz files, or whose subfolder ``medmnist`` does.
        download: let the package ``medmnist`` fetch a missing file into ``root/medmnist``.
        size: side of the images in pixels: 28, 64, 128 or 224.
        as_rgb: repeat the channel of a grey set three times, as some papers do; a set in colour stays as it is.
            The card says which it is.

    Raises:
        InputError: unknown flag or size, file missing or damaged, or contents that are not allowed.
    """
    info = _info(flag, size)
    if not isinstance(as_rgb, bool):
        raise InputError(f"as_rgb is {as_rgb!r}; allowed: True, False")
    found = find(flag, root=root, size=size)
    if not found.present and download:
        folder, maker = root / "medmnist", getattr(medmnist, info["python_class"])
        fetch(
            folder,
            lambda temporary: maker(split="test", root=str(temporary), size=size, download=True),
            [_file(flag, size)],
            found.what_to_do,
        )
        found = find(flag, root=root, size=size)
    if found.where is None:
        raise InputError(f"medmnist:{flag} at size {size} is not in {root}. {found.what_to_do}")
    path = found.where
    with reading(path):
        verified = md5(path) == info[_key("MD5", size)]
        splits = _read(path, size, info["n_channels"])
        card = _card(flag, size)
        notes = list(card.notes)
        if as_rgb and info["n_channels"] == 1:
            splits = {key: Split(np.repeat(s.images, 3, axis=3), s.labels) for key, s in splits.items()}
            notes = ["Grey, repeated to three channels (as_rgb)."]
        if not verified:
            notes.append("Not the official file: its MD5 differs from the published one.")
            if (counts := {key: len(s) for key, s in splits.items()}) != info["n_samples"]:
                notes.append(f"Numbers of images {counts}; official: {info['n_samples']}.")
        card = dataclasses.replace(card, notes=tuple(notes), verified=verified)
        names = [info["label"][str(number)] for number in range(len(info["label"]))]
        return ImageSet(card.name, splits, names, card)


def find(flag: str, *, root: Path, size: int = 28, as_rgb: bool = False) -> Found:
    """Look for the npz file of a set; ``as_rgb`` makes no difference to it.

    Raises:
        InputError: unknown flag or size.
    """
    info = _info(flag, size)
    name, file = f"medmnist:{flag}", _file(flag, size)
    for folder in (root / "medmnist", root):
        if (folder / file).is_file():
            return Found(name, present=True, where=folder / file, what_to_do="")
    what = (
        f"Load it once with download=True, or run data_scripts/medmnist_sets.py {flag} --size {size} --download "
        f"(needs network), or fetch {info[_key('url', size)]} "
        f"(MD5 {info[_key('MD5', size)]}) and put it at {root / 'medmnist' / file}"
    )
    return Found(name, present=False, where=None, what_to_do=what)


def _info(flag: str, size: int) -> dict[str, Any]:
    if flag == "chestmnist":
        raise InputError(
            "medmnist:chestmnist has 14 yes/no findings for each image; allowed: sets with one class per image, "
            + ", ".join(members())
        )
    choose("MedMNIST flag", flag, members())
    choose("size", size, SIZES)
    info: dict[str, Any] = medmnist.INFO[flag]
    return info


def _card(flag: str, size: int) -> Card:
    info = medmnist.INFO[flag]
    return Card(
        name=f"medmnist:{flag}",
        title=f"{info['python_class']} ({size} x {size})",
        kind="real",
        source=f"MedMNIST v2, {info[_key('url', size)]}",
        licence=info["license"],
        citation=CITATION,
        notes=("Grey.",) if info["n_channels"] == 1 else ("RGB.",),
    )


def _key(word: str, size: int) -> str:
    return word if size == 28 else f"{word}_{size}"


def _file(flag: str, size: int) -> str:
    return f"{_key(flag, size)}.npz"


def _read(path: Path, size: int, channels: int) -> dict[str, Split]:
    # without pickle: an archive of Python objects is refused by numpy
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise InputError("is a single array; allowed: an npz archive")
    with loaded as archive:
        wanted = [f"{key}_{part}" for key in SPLITS for part in ("images", "labels")]
        if missing := [key for key in wanted if key not in archive.files]:
            raise InputError(f"has no {', '.join(missing)}; needed: {', '.join(wanted)}")
        return {
            key: _split(key, archive[f"{key}_images"], archive[f"{key}_labels"], size, channels)
            for key in SPLITS
        }


def _split(key: str, images: np.ndarray, labels: np.ndarray, size: int, channels: int) -> Split:
    shape = (size, size) if channels == 1 else (size, size, channels)
    if images.shape[1:] != shape:
        expected = ", ".join(map(str, ("n", *shape)))
        raise InputError(f"{key}_images has shape {images.shape}; allowed: ({expected})")
    if labels.shape not in ((len(images), 1), (len(images),)):
        raise InputError(f"{key}_labels has shape {labels.shape}; allowed: ({len(images)}, 1)")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{key}_labels has type {labels.dtype}; allowed: integers")
    try:
        return Split(images.reshape(len(images), size, size, channels), labels.reshape(-1).astype(np.int64))
    except InputError as error:
        raise InputError(f"{key}: {error}") from error
