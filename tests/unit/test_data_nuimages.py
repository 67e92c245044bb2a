"""The reader of nuImages, on a small copy in the real format, whole and damaged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nuscenes.eval.detection.constants import DETECTION_NAMES
from PIL import Image
from roots import CATEGORIES, write_nuimages

from fedlib import data
from fedlib.data import crops, nuimages
from fedlib.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_nuimages(tmp_path / "nuimages").parent


def test_boxes_become_crops_of_their_class(root: Path) -> None:
    made = data.load("nuimages", root=root, size=32)
    assert made.class_names == tuple(DETECTION_NAMES)
    assert made.shape == (32, 32, 3)
    assert made.card.kind == "real"
    names = [made.class_names[label] for label in made.train.labels]
    # of six pictures: the child (10 pixels) and four buses (20 pixels) are too small, animals are no road users
    assert {name: names.count(name) for name in set(names)} == {
        "car": 6,
        "truck": 6,
        "pedestrian": 6,
        "bus": 2,
    }
    assert len(made.test) == 20
    colours = {"car": "vehicle.car", "truck": "vehicle.truck", "pedestrian": "human.pedestrian.adult"}
    for image, name in zip(made.train.images, names):
        if name in colours:
            middle = image[12:20, 14:18].reshape(-1, 3).mean(axis=0)
            assert middle == pytest.approx(CATEGORIES[colours[name]], abs=25)
            assert np.abs(image[16, 2] - np.array([120.0] * 3)).max() < 60  # beside the box: what was there


def test_cap_limits_each_class_in_each_split(root: Path) -> None:
    made = data.load("nuimages", root=root, size=32, cap=3)
    for split in made.splits.values():
        assert sorted(np.bincount(split.labels)[np.unique(split.labels)].tolist()) == [2, 3, 3, 3]
    assert any("At most 3 crops" in note for note in made.card.notes)
    again = data.load("nuimages", root=root, size=32, cap=3)
    assert again.checksum == made.checksum


def test_crops_are_cut_once_and_again_when_a_table_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.load("nuimages", root=root, size=32)
    calls = []
    cut: Callable[..., crops.Cuts] = crops.cut
    monkeypatch.setattr(crops, "cut", lambda *a: calls.append(1) or cut(*a))
    assert data.load("nuimages", root=root, size=32).checksum == first.checksum
    assert not calls
    path = root / "nuimages" / "v1.0-train" / "object_ann.json"
    path.write_text(json.dumps(json.loads(path.read_text())[6:]))
    assert len(data.load("nuimages", root=root, size=32).train) == 16
    assert calls


def test_a_bad_picture_costs_only_its_own_crops(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = root / "nuimages" / "samples" / "CAM_FRONT"
    cut_short, absent = folder / "v1.0-train-1.jpg", folder / "v1.0-train-3.jpg"
    whole = cut_short.read_bytes()
    cut_short.write_bytes(whole[: len(whole) // 2])
    absent.unlink()
    with caplog.at_level(logging.WARNING):
        made = data.load("nuimages", root=root, size=32)
    assert (len(made.train), len(made.test)) == (13, 20)
    assert any(
        f"2 pictures could not be read and left out (first: {cut_short})" in n for n in made.card.notes
    )
    assert str(cut_short) in caplog.text
    assert f"{absent} is skipped: there is no such file" in caplog.text
    cut_short.write_bytes(whole)  # repaired: noticed, and the crops are there
    assert len(data.load("nuimages", root=root, size=32).train) == 17


def test_no_readable_picture_is_an_error(root: Path) -> None:
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"none of 6 pictures could be read; the first: .*v1.0-train-0.jpg"):
        data.load("nuimages", root=root, size=32)


@pytest.mark.parametrize("table", nuimages.TABLES)
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "is missing"),
        (b'[{"token"', "damaged or not of the expected format"),
        (b'[{"no": "fields"}]', "damaged or not of the expected format"),
        (b'{"a": 1}', "not a list"),
        (b"[3]", "not a list of records"),
    ],
)
def test_missing_and_damaged_tables_are_named(
    root: Path, table: str, content: bytes | None, named: str
) -> None:
    path = root / "nuimages" / "v1.0-val" / f"{table}.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=named) as caught:
        data.load("nuimages", root=root, size=32)
    assert str(path.parent) in str(caught.value)


def test_absent_copy_says_what_to_do(tmp_path: Path) -> None:
    assert not data.find("nuimages", root=tmp_path).present
    with pytest.raises(InputError, match=r"nuscenes.org/nuimages.*data_scripts/nuimages_crops.py"):
        data.load("nuimages", root=tmp_path)
    (tmp_path / "nuimages" / "v1.0-train").mkdir(parents=True)  # half a copy
    assert not data.find("nuimages", root=tmp_path).present


def test_the_copy_may_be_the_data_folder_itself(root: Path) -> None:
    assert data.find("nuimages", root=root / "nuimages").where == root / "nuimages"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": 33}, "size is 33"),
        ({"cap": 0}, "cap is 0"),
        ({"cap": 2.5}, "cap is 2.5"),
        ({"cap": True}, "cap"),
    ],
)
def test_bad_options_are_named(root: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        data.load("nuimages", root=root, **options)


def test_windows_keep_proportions_and_repeat_the_edge(tmp_path: Path) -> None:
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    pixels[:, :, 0] = np.arange(60) * 4
    path = tmp_path / "ramp.png"
    Image.fromarray(pixels).save(path)
    job = crops.Job(path, np.array([[20.0, 10.0, 52.0, 26.0], [44.0, 0.0, 60.0, 32.0]]), np.array([0, 1]))
    made = crops.cut([job], 32, 1.0)
    assert made.images[0, 5, :, 0].tolist() == (np.arange(20, 52) * 4).tolist()
    assert made.images[1, 5, :, 0].tolist() == (np.minimum(np.arange(36, 68), 59) * 4).tolist()


def test_real_boxes_of_a_nuscenes_picture(sample_data: Path) -> None:
    listed = json.loads((sample_data / "nuscenes-road-crops" / "crops.json").read_text())["crops"]
    name = next(crop["image"] for crop in listed if "CAM_FRONT__" in crop["image"])
    of_picture = [crop for crop in listed if crop["image"] == name]
    boxes = np.array([crop["box"] for crop in of_picture])
    made = crops.cut([crops.Job(sample_data / name, boxes, np.arange(len(boxes)))], 64, nuimages.MARGIN)
    stored = np.load(sample_data / "nuscenes-road-crops" / "road_crops_64.npz")["images"]
    theirs = stored[[listed.index(crop) for crop in of_picture]]
    for ours, other in zip(made.images, theirs):  # cut by others with another margin: alike, not equal
        assert np.abs(ours.mean(axis=(0, 1)) - other.mean(axis=(0, 1))).max() < 40
