"""The generated cells: format and imbalance of MedMNIST, hospitals that differ, the same bits everywhere."""

from __future__ import annotations

from pathlib import Path

import medmnist
import numpy as np
import pytest

from fedlib import data
from fedlib.data import cells
from fedlib.data.cells.counts import COUNTS
from fedlib.errors import InputError


@pytest.mark.parametrize("flag", list(COUNTS))
def test_counts_add_up_to_the_published_sizes(flag: str) -> None:
    info = medmnist.INFO["organamnist" if flag == "organa" else f"{flag}mnist"]
    for split, row in COUNTS[flag].items():
        assert len(row) == len(info["label"])
        assert sum(row) == info["n_samples"][split]


@pytest.mark.parametrize("flag", list(COUNTS))
def test_the_full_set_has_the_counts_of_the_published_one(flag: str) -> None:
    made = cells.split_counts(flag, sum(COUNTS[flag]["train"]))
    for split, row in COUNTS[flag].items():
        assert made[split].tolist() == list(row)


def test_small_sets_keep_enough_test_pictures_and_no_more_than_there_are() -> None:
    assert abs(sum(cells.split_counts("oct", 1000)["test"]) - 500) <= 4
    assert sum(cells.split_counts("path", 80_000)["test"]) == 7180


@pytest.mark.parametrize("flag", ["derma", "oct"])
def test_shares_channels_and_names_are_those_of_the_set(flag: str) -> None:
    made = data.load(f"cells:{flag}", train_images=1000)
    info = medmnist.INFO[f"{flag}mnist"]
    assert made.shape == (28, 28, info["n_channels"])
    assert made.num_classes == len(info["label"])
    assert made.card.kind == "surrogate"
    shares = np.bincount(made.train.labels) / len(made.train)
    assert np.abs(shares - np.array(COUNTS[flag]["train"]) / sum(COUNTS[flag]["train"])).max() < 0.003
    assert set(made.test.labels) == set(range(made.num_classes))


@pytest.mark.parametrize("flag", ["tissue", "derma"])
def test_pictures_of_64_pixels_are_finer_ones_of_the_same_classes(flag: str) -> None:
    made, small = (data.load(f"cells:{flag}", train_images=100, size=size) for size in (64, 28))
    assert made.shape == (64, 64, medmnist.INFO[f"{flag}mnist"]["n_channels"])
    for split, part in made.splits.items():
        assert part.images.shape == (len(small.splits[split]), *made.shape)
        assert np.array_equal(part.labels, small.splits[split].labels)


def test_bits_depend_on_seed_and_size_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = data.load("cells:blood", train_images=200)
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    assert data.load("cells:blood", train_images=200).checksum == first.checksum
    assert data.load("cells:blood", train_images=200, seed=1).checksum != first.checksum


def test_hospitals_differ_in_how_their_pictures_look() -> None:
    made, where = data.load("cells:path", train_images=1000), data.domains("cells:path", train_images=1000)
    assert {split: len(ids) for split, ids in where.items()} == {
        s: len(part) for s, part in made.splits.items()
    }
    colours = np.stack([made.train.images[where["train"] == h].mean((0, 1, 2)) for h in range(5)])
    spread = np.linalg.norm(colours[:, None] - colours[None], axis=-1)
    assert spread[~np.eye(5, dtype=bool)].min() > 4
    sharp = [
        np.abs(np.diff(made.train.images[where["train"] == h].astype(float), axis=1)).mean() for h in range(5)
    ]
    assert max(sharp) > 1.2 * min(sharp)


def test_classes_overlap_but_can_be_told_apart() -> None:
    made = data.load("cells:blood", train_images=1000)
    flat = made.train.images.reshape(len(made.train), -1).astype(float)
    means = np.stack([flat[made.train.labels == c].mean(0) for c in range(8)])
    test = made.test.images.reshape(len(made.test), -1).astype(float)
    nearest = ((test[:, None] - means[None]) ** 2).sum(-1).argmin(1)
    accuracy = (nearest == made.test.labels).mean()
    majority = np.bincount(made.test.labels).max() / len(made.test)
    assert majority + 0.05 < accuracy < 0.85


@pytest.mark.parametrize("flag", ["blood", "tissue"])
def test_the_written_file_is_read_as_medmnist(flag: str, tmp_path: Path) -> None:
    cells.write_npz(tmp_path / f"{flag}mnist.npz", flag, train_images=300)
    read = data.load(f"medmnist:{flag}mnist", root=tmp_path)
    made = data.load(f"cells:{flag}", train_images=300)
    assert np.array_equal(read.train.images, made.train.images)
    assert np.array_equal(read.test.labels, made.test.labels)
    assert any("Not the official file" in note for note in read.card.notes)


@pytest.mark.parametrize(
    "options", [{"size": 32}, {"train_images": 10}, {"train_images": True}, {"seed": -1}, {"colour": 1}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        data.load("cells:blood", **options)


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(InputError, match="allowed: blood, derma"):
        data.load("cells:brain")
