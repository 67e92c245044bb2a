"""``cifar10``: 60,000 RGB pictures, 32 x 32, ten classes (Krizhevsky, 2009).

torchvision downloads and reads the Python version, ``cifar-10-batches-py`` below the data folder. Those files
are pickles. torchvision compares the published MD5 of every one of them *before* it opens any, and refuses all of
them if one differs, so that nothing but the publisher's own bytes is ever unpickled; a local copy that is not
identical to the publisher's is an error here, never a warning.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10

from fedlib.data.files import Found, fetch, md5
from fedlib.data.imageset import Card, ImageSet, Split
from fedlib.errors import InputError

NAME = "cifar10"

CARD = Card(
    name=NAME,
    title="CIFAR-10 (32 x 32)",
    kind="real",
    source="University of Toronto, https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; free for research by custom",
    citation="A. Krizhevsky. Learning multiple layers of features from tiny images. "
    "Technical report, University of Toronto, 2009.",
    notes=("RGB.",),
)


def load(*, root: Path, download: bool) -> ImageSet:
    """Load CIFAR-10 from ``root``, or let torchvision download it there.

    Raises:
        InputError: files missing, a checksum that differs (the message names the file), or no network where a
            download is asked for.
    """
    found = find(root=root)
    if not found.present and download:
        files = [f"{CIFAR10.base_folder}/{name}" for name in _md5()]
        fetch(root, lambda temporary: CIFAR10(str(temporary), download=True), files, found.what_to_do)
        found = find(root=root)
    if found.where is None:
        raise InputError(f"{NAME} is not in {root}. {found.what_to_do}")
    try:
        parts = {"train": CIFAR10(str(root), train=True), "test": CIFAR10(str(root), train=False)}
    except RuntimeError as error:
        for name, published in _md5().items():
            if (here := md5(found.where / name)) != published:
                raise InputError(
                    f"{found.where / name}: MD5 is {here}; published: {published}; replace the file"
                ) from error
        raise
    splits = {key: Split(part.data, np.asarray(part.targets, dtype=np.int64)) for key, part in parts.items()}
    card = dataclasses.replace(CARD, verified=True)  # torchvision has refused any other file
    return ImageSet(NAME, splits, parts["train"].classes, card)


def find(*, root: Path) -> Found:
    """Look for the batch files of the Python version."""
    folder = root / CIFAR10.base_folder
    if all((folder / name).is_file() for name in _md5()):
        return Found(NAME, present=True, where=folder, what_to_do="")
    what = (
        "Load it once with download=True, or run data_scripts/cifar10.py --download (needs network, 170 MB), "
        f"or fetch {CIFAR10.url} "
        f"(MD5 {CIFAR10.tgz_md5}) and unpack it in {root}, so that {folder} holds its files"
    )
    return Found(NAME, present=False, where=None, what_to_do=what)


def _md5() -> dict[str, str]:
    """Published checksums of the batch files and of the file with the class names."""
    return {**dict(CIFAR10.train_list + CIFAR10.test_list), CIFAR10.meta["filename"]: CIFAR10.meta["md5"]}
