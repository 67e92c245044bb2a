"""``digits``: real handwritten digits that ship inside scikit-learn, the default wherever nothing is downloaded.

1,797 images of 8 x 8 pixels: the test part of the UCI set "Optical Recognition of Handwritten Digits"
(Alpaydin and Kaynak, 1998). Each pixel counts the ink in a 4 x 4 block of the scan, 0 to 16.

* **Pixels.** v in 0..16 is stored as u = round(255 v / 16); round(16 u / 255) gives v back exactly.
* **Split** (ours; the publisher has none for this part). Images are taken class by class in the order of the
  file: the 4th, 8th, 12th, ... image of each class is a test image, the others are training images. It is
  stratified, needs no random numbers, and never changes. The file goes writer by writer, and most writers are in
  both splits, so accuracy is that on known writers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from fedlib.data.files import Found
from fedlib.data.imageset import Card, ImageSet, Split

INK = 16  # largest value of a pixel in the UCI file
TEST_EVERY = 4

CARD = Card(
    name="digits",
    title="Handwritten digits (UCI, 8 x 8)",
    kind="real",
    source="scikit-learn (sklearn.datasets.load_digits); UCI Machine Learning Repository, doi:10.24432/C50P49",
    licence="CC BY 4.0",
    citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
    "UCI Machine Learning Repository, 1998.",
    notes=(
        "Pixel values 0 to 16 are scaled to 0 to 255 reversibly.",
        "Every 4th image of each class is a test image; most writers are in both splits.",
    ),
)


def load(*, root: Path, download: bool) -> ImageSet:
    """Return the digits; ``root`` and ``download`` have no effect, the data are inside scikit-learn."""
    digits = load_digits()
    images = np.rint(digits.images * (255 / INK)).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    splits = {"train": Split(images[~test], labels[~test]), "test": Split(images[test], labels[test])}
    return ImageSet(CARD.name, splits, [str(digit) for digit in digits.target_names], CARD)


def find(*, root: Path) -> Found:
    """Say that the digits are always there."""
    return Found(CARD.name, present=True, where=None, what_to_do="")
