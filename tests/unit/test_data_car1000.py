"""The reader of Car-1000's folders and hierarchy, on small copies, whole and damaged."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from fedlib import data
from fedlib.errors import InputError

MODELS = {  # model: body type, sub-type
    "acme/alpha": ("sedan", "micro sedan"),
    "acme/beta": ("Sedan", "mid-size sedan"),
    "zeta/gamma": ("sedan", ""),
    "zeta/delta": ("van", ""),
    "zeta/epsilon": ("SUV", "large SUV"),
}
BODY_TYPES = {"sedan", "Sedan", "van", "SUV"}
HEADER = "model,body_type,sub_type\n"


def hierarchy(models: dict[str, tuple[str, str]] = MODELS) -> str:
    return HEADER + "".join(f"{model},{body},{sub}\n" for model, (body, sub) in models.items())


def write_pictures(folder: Path, each: int = 8) -> None:
    rng = np.random.default_rng(0)
    for number, model in enumerate(MODELS):
        (folder / model).mkdir(parents=True)
        for k in range(each):
            pixels = rng.integers(0, 60, (48, 64, 3), dtype=np.uint8)
            pixels[..., 0] += np.uint8(40 * number)
            Image.fromarray(pixels).save(folder / model / f"{k:02d}.jpg", quality=95)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "car1000")
    (tmp_path / "car1000" / "hierarchy.csv").write_text(hierarchy())
    return tmp_path


def test_coarse_task_has_body_types_and_every_fourth_picture_for_test(root: Path) -> None:
    made = data.load("car1000-coarse", root=root, size=32)
    assert set(made.class_names) == BODY_TYPES
    assert (len(made.train), len(made.test)) == (30, 10)
    counts = dict(zip(made.class_names, np.bincount(made.train.labels).tolist()))
    assert counts == {"sedan": 12, "Sedan": 6, "van": 6, "SUV": 6}
    for image, label in zip(made.train.images, made.train.labels):
        numbers = [n for n, (body, _) in enumerate(MODELS.values()) if body == made.class_names[label]]
        assert min(abs(image[..., 0].mean() - (40 * n + 30)) for n in numbers) < 15
    assert any("every 4th picture" in note for note in made.card.notes)


def test_fine_task_has_the_sub_types_of_sedans_only(root: Path) -> None:
    made = data.load("car1000-fine", root=root, size=32)
    assert made.class_names == ("micro sedan", "mid-size sedan")
    assert np.bincount(made.train.labels).tolist() == [6, 6]


def test_official_splits_are_kept(tmp_path: Path) -> None:
    for key, each in (("train", 4), ("val", 2), ("test", 3)):
        write_pictures(tmp_path / "car1000" / key, each)
    (tmp_path / "car1000" / "hierarchy.json").write_text(
        json.dumps({model: {"body_type": body, "sub_type": sub} for model, (body, sub) in MODELS.items()})
    )
    made = data.load("car1000-fine", root=tmp_path, size=32)
    assert {key: len(split) for key, split in made.splits.items()} == {"train": 8, "val": 4, "test": 6}
    assert not any("every 4th" in note for note in made.card.notes)


def test_cap_limits_each_class(root: Path) -> None:
    made = data.load("car1000-coarse", root=root, size=32, cap=5)
    assert np.bincount(made.train.labels).tolist() == [5, 5, 5, 5]


def test_a_bad_picture_is_skipped_and_counted(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = root / "car1000" / "acme" / "alpha" / "01.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (root / "car1000" / "acme" / "beta" / "00.jpg").write_text("not a picture")
    (root / "car1000" / "readme.txt").write_text("no picture, no matter")
    with caplog.at_level(logging.WARNING):
        made = data.load("car1000-fine", root=root, size=32)
    assert len(made.train) == 10
    assert any("2 pictures could not be read" in note and str(path) in note for note in made.card.notes)
    assert str(path) in caplog.text
    path.write_bytes(whole)
    assert len(data.load("car1000-fine", root=root, size=32).train) == 11


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("hierarchy.csv", "model,body\nacme/alpha,sedan\n", "has no column body_type, sub_type"),
        ("hierarchy.csv", "", "has no column model"),
        ("hierarchy.csv", hierarchy() + "acme/alpha,van,\n", "'acme/alpha' is listed twice"),
        ("hierarchy.csv", hierarchy() + ",van,\n", "a row without a model"),
        ("hierarchy.csv", hierarchy() + "acme/x,,\n", "'acme/x' has no body_type"),
        ("hierarchy.csv", HEADER + "acme/alpha,sedan,\n", "allowed: two or more"),
        ("hierarchy.csv", hierarchy(dict(list(MODELS.items())[1:])), "no row for the model 'acme/alpha'"),
        ("hierarchy.json", "{", "damaged"),
        ("hierarchy.json", "[1]", "allowed: "),
        ("hierarchy.csv", "\xff\xfe\x00", "damaged|no column"),
    ],
)
def test_a_bad_hierarchy_is_named(root: Path, file: str, content: str, named: str) -> None:
    (root / "car1000" / "hierarchy.csv").unlink()
    path = root / "car1000" / file
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=named) as caught:
        data.load("car1000-coarse", root=root, size=32)
    assert str(path) in str(caught.value)


def test_absent_copies_and_pictures_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hierarchy.csv with the columns.*data_scripts/car1000.py"):
        data.load("car1000-fine", root=tmp_path)
    (tmp_path / "hierarchy.csv").write_text(hierarchy())
    assert data.find("car1000-fine", root=tmp_path).where == tmp_path
    with pytest.raises(InputError, match="no picture for the train split"):
        data.load("car1000-fine", root=tmp_path)


@pytest.mark.parametrize(("options", "named"), [({"size": 30}, "size is 30"), ({"cap": -1}, "cap is -1")])
def test_bad_options_are_named(root: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        data.load("car1000-coarse", root=root, **options)


def test_real_crops_go_through_unchanged(sample_data: Path, tmp_path: Path) -> None:
    folder = sample_data / "nuscenes-road-crops"
    names = json.loads((folder / "crops.json").read_text())["labels"]
    with np.load(folder / "road_crops_64.npz") as archive:
        images, labels = archive["images"], archive["labels"]
    rows, originals = {}, {}
    for name in ("car", "pedestrian"):
        of_class = images[labels == names.index(name)]
        (tmp_path / "car1000" / name).mkdir(parents=True)
        for k, image in enumerate(of_class):
            Image.fromarray(image).save(tmp_path / "car1000" / name / f"{k:03d}.png")
        rows[name], originals[name] = (name, ""), of_class
    (tmp_path / "car1000" / "hierarchy.csv").write_text(hierarchy(rows))
    made = data.load("car1000-coarse", root=tmp_path, size=64)
    for number, name in enumerate(made.class_names):
        test = np.arange(1, len(originals[name]) + 1) % 4 == 0
        np.testing.assert_array_equal(made.train.images[made.train.labels == number], originals[name][~test])
        np.testing.assert_array_equal(made.test.images[made.test.labels == number], originals[name][test])


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("car1000.py", ["coarse"]), ("nuimages_crops.py", []), ("roadworld.py", ["nothing"])],
)
def test_scripts_end_with_what_is_wrong(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, arguments: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(repo / "data_scripts"))
    loader = importlib.util.spec_from_file_location("script", repo / "data_scripts" / script)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    app = typer.Typer()
    app.command()(module.main)
    where = [] if script == "roadworld.py" else ["--root", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, *where])
    assert done.exit_code == 1
    assert "data_scripts" in done.output or "allowed: objects, coarse, fine" in done.output
