"""The table of the domains: what is counted is what is there, and distances tell the domains apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlib.data.nuscenes import CLASSES, DOMAINS, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives import conditions
from fedlib.data.roadworld.drives.recording import Recipe
from fedlib.errors import InputError
from fedlib.experiments import fedcka_domains as domains
from fedlib.experiments import settings
from fedlib.experiments.study import Study
from fedlib.report import register

RECIPE = Recipe(frames=2, sweeps=0, image_size=(16, 32), beams=12, azimuths=90, reach=14.0, seed=0)
CONFIG = settings.load("fedcka", "smoke")


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> DrivingSet:
    """One training and one validation scene of each domain, two training scenes of A."""
    folder = tmp_path_factory.mktemp("five")
    one = dict.fromkeys(DOMAINS, 1)
    drives.write(folder, scenes={"train": one | {"A": 2}, "val": one}, recipe=RECIPE, processes=1)
    return DrivingSet(drives.NAME, folder, drives.VERSION, drives.CARD)


@pytest.fixture(scope="module")
def study(five: DrivingSet, tmp_path_factory: pytest.TempPathFactory) -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(domains.data, "driving", lambda *a, **k: five)
        return domains.domains(CONFIG, frames=2)


def value(study: Study, **where: object) -> float:
    rows = study.select(**where)
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def test_the_list_of_scenes_gives_the_table_of_the_paper() -> None:
    ours = domains.published_scenes()
    for row in register.table("fedcka_table1_scenes.csv"):
        assert ours.loc[row["domain"]].to_dict() == {
            "train": int(row["train_scenes"]),
            "val": int(row["val_scenes"]),
        }


def test_scenes_frames_and_boxes_are_those_of_the_root(study: Study, five: DrivingSet) -> None:
    assert value(study, metric="train_scenes", domain="A") == 2
    assert value(study, metric="frames", domain="A", split="train") == 4
    assert value(study, metric="samples_per_scene") == 2
    assert value(study, metric="clients") == 5
    assert value(study, metric="samples_outside_own_domain") == 0
    cars = sum(int((five.labels(t).classes == CLASSES.index("car")).sum()) for t in five.samples("B", "val"))
    assert value(study, metric="annotated/car", domain="B", split="val") == cars
    for letter, names in conditions.ABSENT.items():
        assert value(study, metric="absent_classes", domain=letter) >= len(names)
        for name in names:
            assert value(study, metric=f"boxes/{name}", domain=letter, split="train") == 0


def test_ratios_are_per_training_scene(study: Study) -> None:
    train = study.select(metric="annotated/car", split="train").set_index("domain")["value"]
    wanted = ((train["A"] + train["B"]) / 3) / ((train["C"] + train["D"] + train["E"]) / 3)
    assert value(study, metric="car_ratio") == pytest.approx(wanted)


def test_distances_have_the_sign_and_size_of_the_change(study: Study) -> None:
    table = domains.distances(study)
    assert table.loc["night (C, D)", "picture mean"] < -2, "night is dark"
    assert table.loc["rain by day (A, B)", "points a sweep"] < -2, "rain swallows points"
    assert table["class mix"].between(0, 1).all()
    mix = domains.class_mix(study)
    assert list(mix.columns) == list(DOMAINS)
    assert mix.loc["trailer", "E"] == 0


def test_claims_get_rows_without_empty_columns(study: Study) -> None:
    assert "domain" not in domains.claim_rows(study, "car_ratio", "motorcycle_ratio")
    assert set(domains.claim_rows(study, "val_scenes")["domain"]) == set(DOMAINS)


def test_the_frame_that_is_shown_has_most_boxesin_view(
    five: DrivingSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domains.data, "driving", lambda *a, **k: five)
    frames = domains.showcase(CONFIG)
    assert list(frames) == list(DOMAINS)
    for letter, frame in frames.items():
        assert frame.domain == letter
        everywhere = [t for s in five.scenes.values() if s.domain == letter for t in s.samples]
        seen = [domains.in_view("CAM_FRONT", five.frame(token, sweeps=1)) for token in everywhere]
        assert domains.in_view("CAM_FRONT", frame) == max(seen)
    with pytest.raises(InputError, match="camera"):
        domains.showcase(CONFIG, "CAM_TOP")


def test_the_table_is_stored_once(five: DrivingSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    monkeypatch.setattr(domains.data, "driving", lambda *a, **k: five)
    first = domains.domains(CONFIG, frames=1)
    monkeypatch.setattr(domains, "_counts", None)
    assert domains.domains(CONFIG, frames=1).metrics.equals(first.metrics)
