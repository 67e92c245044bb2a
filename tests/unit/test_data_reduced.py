"""Smaller versions of an image set."""

from __future__ import annotations

import numpy as np
import pytest

from fedlib import data
from fedlib.data.reduced import fewer, smaller
from fedlib.errors import InputError


def test_a_pixel_is_the_mean_of_its_block() -> None:
    whole = data.load("digits")
    half = smaller(whole, 4)
    assert half.shape == (4, 4, 1)
    block = whole.train.images[5, 2:4, 4:6, 0]
    assert half.train.images[5, 1, 2, 0] == np.rint(block.mean())
    assert (half.train.labels == whole.train.labels).all()
    assert "Reduced from 8 to 4 pixels" in half.card.notes[-1]
    assert half.checksum != whole.checksum


def test_fewer_images_are_the_first_of_each_class_and_tests_stay() -> None:
    whole = data.load("digits")
    few = fewer(whole, 3)
    assert np.bincount(few.train.labels).tolist() == [3] * 10
    first = np.flatnonzero(whole.train.labels == 7)[:3]
    assert (few.train.images[few.train.labels == 7] == whole.train.images[first]).all()
    assert few.test is whole.test
    assert len(fewer(whole, 10_000).train) == len(whole.train)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="image_size of digits is 3; allowed: 1, 2, 4, 8"):
        smaller(data.load("digits"), 3)
    with pytest.raises(InputError, match="train_per_class is 0"):
        fewer(data.load("digits"), 0)
