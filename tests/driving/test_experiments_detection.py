"""The comparison of federated detectors: who learns from what, from which start, and what is counted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.data.detection_metrics import evaluate, evaluate_with_devkit
from fedlib.data.nuscenes import CAMERAS, DOMAINS, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives.recording import Recipe
from fedlib.errors import InputError
from fedlib.experiments import fedcka_detection as detection
from fedlib.experiments import fedcka_footprint as footprint
from fedlib.experiments import fedcka_overall as overall
from fedlib.experiments import fedcka_pictures as pictures
from fedlib.experiments import fedcka_readouts as readouts
from fedlib.experiments import fedcka_seconds as seconds
from fedlib.experiments import settings
from fedlib.experiments.fedcka_domains import in_view
from fedlib.experiments.fedcka_repeats import margins
from fedlib.experiments.study import Study
from fedlib.federation.messages import serialized_bytes
from fedlib.federation.model_state import FlatModel, model_state
from fedlib.methods.fedcka.layers import partition
from fedlib.models import detector
from fedlib.models.detector import build
from fedlib.report.detection import differences
from fedlib.report.register import TREND, lookup
from fedlib.report.tables import mean_sd
from fedlib.report.verdict import DataUse, Provenance, judge

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


def test_uploads_lie_just_above_four_bytes_for_each_shared_parameter() -> None:
    methods = ["own_domain", detection.CENTRAL, "fedavg", "scaffold", "fedbn", "fedrep", "fedselect"]
    methods.append("fedcka")
    study = detection.compare(CONFIG, methods)
    model = build(SMALL, 0)
    size, layers = sum(p.numel() for p in model.parameters()), len(partition(model))
    rows = footprint.uploads(study, model)
    found = rows.set_index(["method", "metric"])["value"]
    assert set(rows["method"]) == {*methods} - {detection.CENTRAL}
    beside = serialized_bytes(model_state(model)) - 4 * size  # names, shapes, running statistics
    assert 0 < found["fedavg", "upload_bytes"] - found["fedavg", "modelled_bytes"] - beside < 500
    for method in set(rows["method"]) - {"own_domain"}:
        extra = found[method, "upload_bytes"] - found[method, "modelled_bytes"]
        assert 0 < extra < 2 * beside, "an element mask has names and shapes too"
        run = 5 * CONFIG.rounds * found[method, "upload_bytes"]
        assert run == pytest.approx(one(study, "uplink_bytes", method=method))
    heads = sum(p.numel() for name, p in model.named_parameters() if name.startswith("heads."))
    assert found["fedrep", "shared_share"] == pytest.approx(1 - heads / size)
    assert (found["own_domain", "shared_share"], found["fedavg", "shared_share"]) == (0, 1)
    # the first of the two rounds is a warm-up, in the second all of the final share is taken
    assert found["fedselect", "shared_share"] == pytest.approx(1 - CONFIG.rho / 2, abs=1e-4)
    kept = study.select(metric="personal_share", method="fedcka")["value"]
    assert found["fedcka", "shared_share"] == pytest.approx(1 - kept.sum() / (5 * CONFIG.rounds))
    assert found["fedselect", "modelled_mask_bytes"] == -(-size // 8)
    assert found["fedselect", "mask_bytes"] > size / 8 / 2, "in one of two rounds"
    assert found["fedcka", "modelled_mask_bytes"] == -(-layers // 8)


def test_each_domain_is_shown_by_its_fullest_frame_and_each_client_s_own_model() -> None:
    scenes = detection.Scenes.of(CONFIG)
    frames = pictures.fullest_frames(scenes)
    assert list(frames) == list(DOMAINS)
    for domain, frame in frames.items():
        counts = {
            token: int(pictures.seen(scenes.driving.labels(token), SMALL.reach).sum())
            for token in scenes.driving.samples(domain, "val")
        }
        assert frame.token == max(counts, key=counts.__getitem__)
        view = {name: in_view(name, frame) for name in CAMERAS}
        assert view[pictures.fullest_camera(frame)] == max(view.values())
    study = detection.compare(CONFIG, ["fedavg", "fedrep"])
    found = pictures.predictions(study, scenes, frames, ["fedavg", "fedrep"])
    models = detection.client_models(scenes.method("fedrep", {}), detection.trajectory_of(study.runs[1]))
    model = build(SMALL, 0).eval()
    model.load_state_dict(models["E"])
    data = scenes.frames("E", "val")
    place = data.tokens.index(frames["E"].token)
    with torch.inference_mode():
        (expected,) = scenes.task().predict(model, data.batch(torch.tensor([place])))
    np.testing.assert_allclose(found["fedrep"]["E"].boxes, expected.boxes, atol=1e-5)
    assert not np.array_equal(found["fedavg"]["E"].scores, found["fedrep"]["E"].scores)
    with pytest.raises(InputError, match="'fedcka' has seed 0"):
        pictures.predictions(study, scenes, frames, ["fedcka"])


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
    random = detection.Scenes.of(CONFIG.model_copy(update={"warm_epochs": 0}))
    assert random.start() is None


def test_scoring_is_timed_beside_training_for_as_many_rounds_as_each_has() -> None:
    settings = CONFIG.model_copy(update={"rounds": 3, "warm_epochs": 0, "seeds": 2})
    study = seconds.scoring_cost(settings)
    found = study.metrics.set_index(["seed", "client", "metric"])["value"]
    assert set(study.metrics["client"]) == {*DOMAINS, "all"}
    for seed in (0, 1):
        for metric, rounds in (("training_seconds", 3), ("scoring_seconds", 2)):  # one is the warm-up
            summed = sum(found[seed, name, metric] for name in DOMAINS)
            assert found[seed, "all", metric] == pytest.approx(rounds * summed)
        both = found[seed, "all", "training_seconds"] + found[seed, "all", "scoring_seconds"]
        share = found[seed, "all", "scoring_seconds"] / both
        assert 0 < found[seed, "all", "scoring_share"] == pytest.approx(share)
        weights = sum(t.nbytes for t in build(SMALL, 0).state_dict().values())
        assert 2 * weights < 1e9 * found[seed, "all", "scoring_peak_gb"] < 1e8
    first = study.metrics.query("seed == 0 and client == 'A'").replace({"client": {"A": "B"}})
    even = pd.concat(
        [study.metrics.query("seed == 0 and client == 'A'"), first]
    )  # two clients that are alike
    cost = even.set_index(["client", "metric"])["value"]["A"]
    frames = seconds.frames_for_share(Study((), even), 0.1, frames=20)
    longer = frames / 10 * cost["training_seconds"]
    assert cost["scoring_seconds"] / (longer + cost["scoring_seconds"]) == pytest.approx(0.1)
    assert seconds.scoring_cost(settings).runs[0].reused, "what was measured once is kept"


def test_the_peak_is_of_what_is_held_at_one_time() -> None:
    def work() -> None:
        a = torch.zeros(1000)
        b = torch.zeros(1000)
        del a
        c = (b + b).double()  # while b and the float32 sum are there
        c.view(10, 100)[0].sum()

    assert seconds.peak_bytes(work) == 4000 + 4000 + 8000


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


def test_as_many_sweeps_are_joined_as_the_settings_say_and_they_are_part_of_the_key() -> None:
    planned = {name: settings.load("fedcka", name).for_scenes().sweeps for name in settings.PROFILES}
    assert planned == {"smoke": 2, "quick": 2, "overnight": 2, "paper": 5}
    assert settings.load("fedcka", "paper", sweeps=3).for_scenes().sweeps == 3
    scenes = {n: detection.Scenes.of(CONFIG.model_copy(update={"sweeps": n})) for n in (1, 2, 3)}
    joined = {}
    for number, found in scenes.items():
        ages = [np.unique(frame.points[:, 4]) for frame in found.frames("A", "train").frames]
        joined[number] = max(map(len, ages))
    assert joined == {1: 1, 2: 2, 3: 3}
    assert len({found.spec("x", {}).key for found in scenes.values()}) == 3
    shown = [
        sum(len(frame.points) for frame in pictures.fullest_frames(scenes[n]).values()) for n in (1, 2, 3)
    ]
    assert shown == sorted(set(shown)), "what is drawn is what the detector takes"


@pytest.mark.parametrize("sweeps", [0, 11, True, 2.5])
def test_a_number_of_sweeps_out_of_range_is_refused_with_what_is_allowed(sweeps: Any) -> None:
    with pytest.raises(InputError, match=f"sweeps is {sweeps}: .*(equal to 1|valid integer)"):
        settings.load("fedcka", "paper", sweeps=sweeps)


def test_masks_that_only_grow_wait_for_a_quarter_of_the_rounds() -> None:
    scenes = detection.Scenes.of(CONFIG.model_copy(update={"rounds": 40, "warmup_rounds": 1}))
    found = {name: getattr(scenes.method(name, {}), "warmup_rounds", None) for name in detection.METHODS}
    assert found["fedcka"] == 1
    late = {"fedcka_percentage", "fedselect", "fedmc", "feddyn"}
    assert {name for name, rounds in found.items() if rounds == 10} == late
    assert scenes.method("fedselect", {"warmup_rounds": 3}).warmup_rounds == 3  # type: ignore[attr-defined]


def test_unknown_methods_and_bad_options_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="method is 'fednova'"):
        detection.compare(CONFIG, ["fednova"])
    with pytest.raises(InputError, match="tau"):
        detection.compare(CONFIG, ["fedcka"], tau=2.0)
    with pytest.raises(InputError, match="preset"):
        detection.compare(CONFIG.model_copy(update={"model": "huge"}))


@pytest.mark.parametrize("damage", ["no scene", "no box"])
def test_what_cannot_be_scored_is_not_trained(
    damage: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    tables = copy / drives.VERSION
    name = "splits.json" if damage == "no scene" else "sample_annotation.json"
    content = json.loads((tables / name).read_text())
    if damage == "no scene":
        content = {split: [s for s in scenes if "-B-val-" not in s] for split, scenes in content.items()}
    else:
        content = [row | {"num_lidar_pts": 0, "num_radar_pts": 0} for row in content]
    (tables / name).write_text(json.dumps(content))
    driving = DrivingSet(drives.NAME, copy, drives.VERSION, replace(drives.CARD, checksum="other"))
    monkeypatch.setattr(detection.data, "driving", lambda name, **options: driving)
    monkeypatch.setattr(detection, "run_rounds", lambda *_, **__: pytest.fail("training began"))
    message = "domain B has no val scene" if damage == "no scene" else "has a box that counts"
    for config in (CONFIG, CONFIG.model_copy(update={"warm_epochs": 0})):
        with pytest.raises(InputError, match=message):
            detection.compare(config, ["fedavg"])


def without(folder: Path, category: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a copy of the root in its place in which no box of a category counts."""
    tables = folder / drives.VERSION
    rows = {name: json.loads((tables / f"{name}.json").read_text()) for name in ("category", "instance")}
    (wanted,) = (row["token"] for row in rows["category"] if row["name"] == category)
    theirs = {row["token"] for row in rows["instance"] if row["category_token"] == wanted}
    content = json.loads((tables / "sample_annotation.json").read_text())
    empty = {"num_lidar_pts": 0, "num_radar_pts": 0}
    content = [row | empty if row["instance_token"] in theirs else row for row in content]
    assert theirs
    (tables / "sample_annotation.json").write_text(json.dumps(content))
    driving = DrivingSet(drives.NAME, folder, drives.VERSION, replace(drives.CARD, checksum=category))
    monkeypatch.setattr(detection.data, "driving", lambda name, **options: driving)


@pytest.mark.parametrize("category", ["vehicle.truck", "vehicle.car"])
def test_a_class_that_is_nowhere_counts_in_no_score(
    category: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    without(tmp_path / "copy", category, monkeypatch)
    config = CONFIG.model_copy(update={"rounds": 1, "warmup_rounds": 0, "warm_epochs": 0})
    methods = ["own_domain", "fedrep", "fedcka"]
    study, start = detection.compare(config, methods), overall.references(config)
    for frame in (overall.named(study.metrics), start.metrics):
        keys = ["method", "client", "domain"]
        mean = frame[frame["metric"].str.startswith("ap_")].groupby(keys)["value"].mean()
        found = frame[frame["metric"] == "map"].set_index(keys)["value"].sort_index()
        pd.testing.assert_series_equal(mean, found)
        assert f"ap_{category.split('.')[1]}" not in set(frame["metric"])
    assert overall.behind_home(study)["value"].notna().all()
    # what the pages show of car AP: a dash where there is no car
    rows = pd.concat([overall.scores(study, "cap", "cap_weighted"), start.metrics])
    table = mean_sd(overall.by_domain(rows, "cap"), by="method", columns="domain")
    assert set(table.index) == {"start", *methods}
    assert (table[overall.AVERAGE] == "–").all() == (category == "vehicle.car")
    part = overall.scores(study, "cap_weighted")
    words = differences(part, {"own_domain": "minus own"}, ["fedcka"]).loc["FedCKA", "minus own"]
    lead = margins(part, "fedcka", ["own_domain"]).loc["own_domain"]
    assert (words == "–") == lead.isna().all() == (category == "vehicle.car")
    origin = Provenance(data=(DataUse(name="roadworld-drives", kind="surrogate"),), profile="quick")
    verdict = judge(lookup("CKA-17"), overall.scores(study, "cap_weighted", "nds_weighted"), origin)
    assert ("not finite" in verdict.sentence) == (category == "vehicle.car")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_full_size_asks_for_a_gpu_before_it_opens_anything() -> None:
    planned = settings.load("fedcka", "paper")
    assert (planned.for_scenes().model, planned.for_scenes().dataset) == ("paper", "nuscenes")
    with pytest.raises(InputError, match="GPU"):
        detection.compare(planned)


def test_the_annotations_score_one_and_the_start_is_the_model_that_all_begin_with() -> None:
    study = overall.references(CONFIG)
    perfect = study.select(method="annotations")
    assert perfect[perfect["metric"] == "map_of_ground_truth"]["value"].tolist() == pytest.approx([1.0] * 5)
    of_ten = perfect.pivot(index="domain", columns="metric", values="value")
    np.testing.assert_allclose(of_ten["map_of_ten_classes"], of_ten["classes"] / 10)
    origin = Provenance(data=(DataUse(name="roadworld-drives", kind="surrogate"),), profile="quick")
    assert judge(lookup("CKA-6"), study.metrics, origin).word == TREND
    scenes = detection.Scenes.of(CONFIG)
    start = scenes.start()
    assert start is not None
    model = FlatModel(scenes.task().build_model(3))
    model.load(detection.trajectory_of(start).weights(CONFIG.warm_epochs))
    scores = detection.evaluated(scenes.task(), model, scenes.frames("B", "val"))
    assert one(study, "nds", method="start", domain="B") == scores["nds"]
    nds = study.select(metric="nds", method="start").set_index("domain")["value"]
    assert one(study, "nds_weighted", method="start") == pytest.approx((nds.sum() + nds["A"]) / 6)
    assert one(study, "off_diagonal_nds", method="start") == pytest.approx(nds.mean())
