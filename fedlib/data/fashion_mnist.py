"""``fashion-mnist``: 70,000 grey pictures of clothes, 28 x 28, ten classes (Xiao, Rasul and Vollgraf, 2017).

torchvision downloads the four files and knows their names and checksums; they lie where torchvision puts them,
``FashionMNIST/raw`` below the data folder. The compressed files are read where they are present, because their
MD5 is published; the unpacked ones (as older copies have them) are read otherwise, unverified.
"""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import numpy as np
from torchvision.datasets import FashionMNIST

from fedlib.data.files import Found, fetch, md5, reading
from fedlib.data.imageset import Card, ImageSet, Split
from fedlib.errors import InputError

NAME = "fashion-mnist"
FOLDER = "FashionMNIST/raw"
MD5 = dict(FashionMNIST.resources)  # name of the compressed file -> checksum
STEMS = {"train": "train", "test": "t10k"}

CARD = Card(
    name=NAME,
    title="Fashion-MNIST (28 x 28)",
    kind="real",
    source="Zalando Research, https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine "
    "learning algorithms. arXiv:1708.07747, 2017.",
    notes=("Grey.",),
)


def load(*, root: Path, download: bool) -> ImageSet:
    """Load Fashion-MNIST from ``root``, or let torchvision download it there.

    Raises:
        InputError: files missing or damaged, or no network where a download is asked for.
    """
    found = find(root=root)
    if not found.present and download:
        fetch(root, lambda temporary: FashionMNIST(str(temporary), download=True), _files(), found.what_to_do)
        found = find(root=root)
    if found.where is None:
        raise InputError(f"{NAME} is not in {root}. {found.what_to_do}")
    splits, checks = {}, []
    for key, stem in STEMS.items():
        images, images_checked = _read_idx(found.where / f"{stem}-images-idx3-ubyte.gz")
        labels, labels_checked = _read_idx(found.where / f"{stem}-labels-idx1-ubyte.gz")
        with reading(found.where):
            splits[key] = Split(images[..., None], labels.astype(np.int64))
        checks += [images_checked, labels_checked]
    notes = (
        CARD.notes if all(checks) else (*CARD.notes, "Unpacked files: no published checksum to compare with.")
    )
    card = dataclasses.replace(CARD, notes=notes, verified=all(checks))
    with reading(found.where):
        return ImageSet(NAME, splits, FashionMNIST.classes, card)


def find(*, root: Path) -> Found:
    """Look for the four files, compressed or not."""
    folder = root / FOLDER
    if all((folder / name).is_file() or (folder / name).with_suffix("").is_file() for name in MD5):
        return Found(NAME, present=True, where=folder, what_to_do="")
    what = (
        "Load it once with download=True, or run data_scripts/fashion_mnist.py --download (needs network, 31 MB), "
        f"or put {', '.join(MD5)} "
        f"from https://github.com/zalandoresearch/fashion-mnist into {folder}"
    )
    return Found(NAME, present=False, where=None, what_to_do=what)


def _files() -> list[str]:
    return [f"{FOLDER}/{name}" for name in MD5]


def _read_idx(path: Path) -> tuple[np.ndarray, bool]:
    """Return the uint8 array of an IDX file (LeCun's MNIST format) and whether its checksum was compared."""
    checked = path.is_file()
    path = path if checked else path.with_suffix("")
    with reading(path):
        if checked and md5(path) != MD5[path.name]:
            raise InputError(f"MD5 is {md5(path)}; published: {MD5[path.name]}; replace the file")
        content = gzip.decompress(path.read_bytes()) if checked else path.read_bytes()
        dims = 3 if "idx3" in path.name else 1
        if content[:4] != bytes([0, 0, 8, dims]):  # two zeros, 8 = unsigned byte, number of dimensions
            raise InputError(
                f"starts with {content[:4].hex()}; allowed: an IDX file of {dims}-dimensional bytes"
            )
        shape = np.frombuffer(content, dtype=">i4", count=dims, offset=4)
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dims).reshape(shape.tolist()), checked
