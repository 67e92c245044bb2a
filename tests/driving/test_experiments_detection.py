"""The comparison of federated detectors: who learns from what, from which start, and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlib.data.detection_metrics import evaluate, evaluate_with_devkit
from fedlib.data.nuscenes import DOMAINS, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives.recording import Recipe
from fedlib.errors import InputError
from fedlib.experiments import fedcka_detection as detection
from fedlib.experiments import fedcka_readouts as readouts
from fedlib.experiments import settings
from fedlib.models import detector

RECIPE = Recipe(frames=2, sweeps=1, image_size=(36, 64), beams=16, azimuths=120, reach=16.0, seed=0)
COUNTS = {"train": {"A": 2, "B": 1, "C": 2, "D": 1, "E": 1}}
COUNTS |= {"val": {"A": 2, "B": 1, "C": 1, "D": 1, "E": 1}, "warm": dict.fromkeys("ABCDE", 1)}
SMALL = detector.Config(
    cells=48, queries=24, image_size=(16, 32), width=16, lidar_width=16, ffn=32, depth_bins=4, image_hidden=16
)
CONFIG = settings.load("fedcka", "smoke").for_scenes().model_copy(update={"inputs": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("five-domains")
    drives.write(made, scenes=COUNTS, recipe=RECIPE, processes=1)
    return made


@pytest.fixture(autouse=True)
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DrivingSet:
    """A root of a few frames, and a detector of a few thousand parameters."""
    driving = DrivingSet(drives.NAME, folder, drives.VERSION, drives.CARD)
    monkeypatch.setattr(detection.data, "driving", lambda name, **options: driving)
    monkeypatch.setitem(detector.PRESETS, "tiny", SMALL)
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    return driving


def one(study: Any, metric: str, **where: object) -> float:
    (value,) = study.select(metric=metric, **where)["value"]
    return float(value)


def test_every_method_is_scored_on_every_domain_and_averages_weigh_validation_scenes() -> None:
    study = detection.compare(CONFIG)
    assert set(study.metrics["method"]) == {*detection.METHODS} - {"fedcka_percentage"}
    for name in set(study.metrics["method"]):
        masking = "threshold" if name == "fedcka" else "none"
        rows = study.select(metric="nds", method=name, masking=masking)
        assert set(zip(rows["client"], rows["domain"], strict=True)) == {
            (a, b) for a in DOMAINS for b in DOMAINS
        }
        assert rows["value"].between(0, 1).all()
        own = rows[rows["client"] == rows["domain"]].set_index("domain")["value"]
        expected = (2 * own["A"] + own["B"] + own["C"] + own["D"] + own["E"]) / 6
        assert one(study, "nds_weighted", method=name, masking=masking) == pytest.approx(expected)
    for name in (detection.CENTRAL, "fedavg", "feddyn", "pcgrad"):
        assert one(study, "row_difference", method=name) == 0, "one model for all"
    assert one(study, "row_difference", method="own_domain") > 0
    sent = study.select(metric="uplink_bytes").groupby("method")["value"].max()
    assert sent["own_domain"] < sent["fedrep"] < sent["fedavg"]
    assert sent["fedbn"] < sent["fedavg"]
    assert (
        one(study, "mask_share", method="fedselect")
        > 0.005
        > one(study, "mask_share", method="fedcka", masking="threshold")
    )


def test_a_level_of_zero_is_fedavg_bit_for_bit_and_one_keeps_all() -> None:
    federated = detection.compare(CONFIG, ["fedavg"])
    study = detection.levels(CONFIG, taus=[0.0, 1.0], rhos=[1.0])
    differing = readouts.differing_weights(study, federated)
    cases = [("threshold", 0.0), ("threshold", 1.0), ("percentage", 1.0)]
    assert list(zip(differing["masking"], differing["level"], strict=True)) == cases
    for count, (masking, level) in zip(differing["value"], cases, strict=True):
        assert (count == 0) == (level == 0), masking
        share = one(study, "personalized_share", masking=masking, level=level)
        assert share == 0 if level == 0 else share > 0.95, "layers that training left alike stay shared"


def test_the_start_is_learned_from_scenes_of_no_client_and_is_where_all_begin(small: DrivingSet) -> None:
    scenes = detection.Scenes.of(CONFIG)
    start = scenes.start()
    assert start is not None
    learned = detection.trajectory_of(start).weights(CONFIG.warm_epochs)
    study = detection.compare(CONFIG, ["own_domain"])
    begun = detection.trajectory_of(study.runs[0])
    assert study.runs[0].config["start"] == start.key
    # nothing is shared, so the global model stays what it was at the start
    assert all(torch.equal(learned[name], tensor) for name, tensor in begun.weights(2).items())
    warm = set(scenes.pooled("warm").tokens)
    assert not warm & (set(scenes.pooled("train").tokens) | set(scenes.pooled("val").tokens))
    assert len(warm) == 10
    cost = readouts.scoring_cost(CONFIG).set_index(["client", "metric"])["value"]
    assert 0 < cost["all", "scoring_share"] < 1
    assert cost["all", "scoring_seconds"] == pytest.approx(
        sum(cost[name, "scoring_seconds"] for name in DOMAINS)
    )
    random = detection.Scenes.of(CONFIG.model_copy(update={"warm_epochs": 0}))
    assert random.start() is None


def test_neither_processes_nor_other_methods_change_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = detection.compare(CONFIG, ["fedcka"])
    monkeypatch.setenv("FEDLIB_WORKERS", "2")
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "other"))
    both = detection.compare(CONFIG, ["fedavg", "fedcka"])
    again = both.runs[1]
    assert not again.reused
    assert again.key == alone.runs[0].key
    assert (again.path / "metrics.csv").read_bytes() == (alone.runs[0].path / "metrics.csv").read_bytes()


def test_the_devkit_gives_the_same_scores_for_a_clients_model() -> None:
    study = detection.compare(CONFIG, ["fedrep"])
    scenes = detection.Scenes.of(CONFIG)
    models = detection.client_models(scenes.method("fedrep", {}), detection.trajectory_of(study.runs[0]))
    assert not torch.equal(models["A"]["heads.0.cls.0.weight"], models["E"]["heads.0.cls.0.weight"])
    assert torch.equal(models["A"]["lidar.stem.0.weight"], models["E"]["lidar.stem.0.weight"])
    frames, task = scenes.frames("A", "val"), scenes.task()
    model = task.build_model(0).eval()
    model.load_state_dict(models["A"])
    with torch.no_grad():
        found = dict(zip(frames.tokens, task.predict(model, list(frames.frames)), strict=True))
    own, devkit = evaluate(frames.truth, found), evaluate_with_devkit(frames.truth, found)
    assert own.nds == pytest.approx(devkit.nds, abs=1e-9)
    assert one(study, "nds", client="A", domain="A") == pytest.approx(own.nds, abs=1e-6)
    assert np.isfinite(own.mean_ap)


def test_unknown_methods_and_bad_options_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="method is 'fednova'"):
        detection.compare(CONFIG, ["fednova"])
    with pytest.raises(InputError, match="tau"):
        detection.compare(CONFIG, ["fedcka"], tau=2.0)
    with pytest.raises(InputError, match="preset"):
        detection.compare(CONFIG.model_copy(update={"model": "huge"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_full_size_asks_for_a_gpu_before_it_opens_anything() -> None:
    planned = settings.load("fedcka", "paper")
    assert (planned.for_scenes().model, planned.for_scenes().dataset) == ("paper", "nuscenes")
    with pytest.raises(InputError, match="GPU"):
        detection.compare(planned)
