"""The MPT experiments: one trajectory for all methods, rows that the register can judge, honest training."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import paths
from fedlib.data import Partition
from fedlib.errors import InputError
from fedlib.experiments import mpt, settings
from fedlib.experiments.federated import trajectory_of
from fedlib.experiments.mpt_scenario import (
    Departure,
    add_noise,
    bench_of,
    departures,
    scores,
    split_of,
    training_run,
)
from fedlib.federation.model_state import FlatModel
from fedlib.federation.tasks import classification_scores
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.mpt.baselines.icarl import Distillation
from fedlib.report import verdict
from fedlib.report.register import lookup
from fedlib.report.verdict import DataUse, Provenance

SMALL = {
    "rounds": 4,
    "departure_round": 2,
    "num_clients": 4,
    "remaining_fractions": [0.05],
    "rare_classes": [8],
    "backbones": {"cnn3": {}, "mobilenet_v3_small": {}},  # the profile's have a length of their own
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("mpt-runs")


@pytest.fixture(autouse=True)
def _one_store(home, monkeypatch):
    """The tests of this file share what they train."""
    monkeypatch.setenv("FEDLIB_HOME", str(home))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")


def config(**changes):
    return settings.load("mpt", "smoke", SMALL | changes)


def trained():
    return len(list(paths.runs_root().glob("federated.training/*/metrics.csv")))


def test_a_further_readout_costs_no_training_and_changes_no_other():
    first = mpt.tracking(config(), ["mpt", "ncm"])
    before = trained()
    second = mpt.tracking(config(), ["mpt", "ncm", "frozen", "oracle", "sdc"])
    assert trained() == before
    same = set(first.metrics["method"])
    shared = second.metrics[second.metrics["method"].isin(same)]
    keys = ["round", "method", "readout", "metric"]
    a, b = (rows.set_index(keys)["value"].sort_index() for rows in (first.metrics, shared))
    pd.testing.assert_series_equal(a, b, check_exact=True)


def test_the_same_seed_gives_the_same_rows_in_another_store(tmp_path, monkeypatch):
    one = mpt.tracking(config(), mpt.HEADLINE)
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    monkeypatch.setenv("FEDLIB_WORKERS", "2")
    two = mpt.tracking(config(), mpt.HEADLINE)
    assert not any(run.reused for run in two.runs)
    pd.testing.assert_frame_equal(one.metrics, two.metrics, check_exact=True)


def test_other_seeds_give_other_weights():
    bench = bench_of(config())
    runs = [training_run(bench, config(), Departure(seed, 8, 0.05), "holdout", 1) for seed in (0, 1)]
    first, second = (trajectory_of(run).weights(0)["head.weight"] for run in runs)
    assert not torch.equal(first, second)


def test_headline_has_one_row_for_each_method_and_measurement():
    rows = mpt.headline(mpt.tracking(config(), mpt.HEADLINE))
    assert set(rows["method"]) >= set(mpt.HEADLINE)
    assert not rows.duplicated(["seed", "method", "round", "metric"]).any()
    assert set(rows[rows["phase"] == "before"]["round"]) == {1, 2}
    for method in mpt.HEADLINE:
        assert set(rows[(rows["method"] == method) & (rows["metric"] == "rare_f1")]["round"]) == {1, 2, 3, 4}


def test_before_the_departure_all_prototype_methods_are_the_nearest_class_mean():
    rows = mpt.tracking(config(), mpt.HEADLINE).metrics
    early = rows[(rows["phase"] == "before") & (rows["readout"] == "shared") & (rows["metric"] == "rare_f1")]
    assert early.groupby("round")["value"].nunique().max() == 1


@pytest.mark.parametrize(("batch_size", "same"), [(2000, True), (32, False)])
def test_numbering_the_vehicles_in_another_way_changes_the_training_only_by_its_batches(batch_size, same):
    """A vehicle's number decides the order of its batches, and nothing else: without batches all is the same."""
    changed = config(batch_size=batch_size, rounds=2, departure_round=1)
    bench = bench_of(changed)
    split = split_of(bench, changed, Departure(0, 8, 0.05))
    order = [2, 0, 3, 1]
    renamed = Partition(tuple(split.clients[i] for i in order), split.total, split.left_out)
    method, leaves = bench.method(), {0: 1}
    one = bench.train(method, split, 0, leaves=leaves, workers=1)
    two = bench.train(method, renamed, 0, leaves={order.index(0): 1}, workers=1)
    a, b = (trajectory_of(run) for run in (one, two))
    assert all(torch.equal(a.weights(0)[name], b.weights(0)[name]) for name in a.weights(0))
    close = all(torch.allclose(a.weights(2)[name], b.weights(2)[name], atol=1e-5) for name in a.weights(2))
    assert close == same


def recorded_batches(monkeypatch, method, training):
    """Train in this process and return the labels in the batches of each round."""
    seen: dict[int, list[int]] = defaultdict(list)
    original = method.loss

    def loss(self, task, local, batch):
        seen[local.round] += batch[1].tolist()
        return original(self, task, local, batch)

    monkeypatch.setattr(method, "loss", loss)
    bench = bench_of(config())
    training_run(bench, config(), Departure(7, 8, 0.05), training, 1)
    return {round: np.bincount(labels, minlength=10)[8] for round, labels in seen.items()}


@pytest.mark.parametrize(
    ("method", "training", "after"),
    [(FedAvg, "holdout", False), (FedAvg, "train", True), (Distillation, "distil", True)],
)
def test_held_out_samples_are_in_no_batch_after_the_departure(monkeypatch, tmp_path, method, training, after):
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))  # trained here, so that the batches are seen
    rare = recorded_batches(monkeypatch, method, training)
    assert rare[1] == rare[2] > 50  # before it they are trained on
    assert set(rare) == {1, 2, 3, 4}
    if after:
        assert rare[3] == rare[4] == 7  # what remains of 134 samples, each once in an epoch
    else:
        assert rare[3] == rare[4] == 0


def test_all_trainings_are_the_same_until_the_departure_and_differ_after_it():
    bench = bench_of(config())
    runs = {
        t: training_run(bench, config(), Departure(0, 8, 0.05), t, 1)
        for t in ("holdout", "train", "distil", "stay")
    }
    weights = {name: trajectory_of(run) for name, run in runs.items()}
    reference = weights.pop("holdout")
    for trajectory in weights.values():
        for name, tensor in reference.weights(2).items():
            assert torch.equal(tensor, trajectory.weights(2)[name])
        assert not torch.equal(reference.weights(3)["head.weight"], trajectory.weights(3)["head.weight"])


def test_the_distillation_has_a_gradient_that_pulls_to_the_old_outputs():
    """A term built from detached copies would leave the gradient of the cross-entropy alone."""
    bench = bench_of(config())
    task, method = bench.task(), bench.method(Distillation, departure=2)
    model = FlatModel(task.build_model(0))
    batch = bench.part("train").batch(torch.arange(16))

    class Local:
        round, memory = 3, {}

    local = Local()
    local.model = model
    local.broadcast = type("Broadcast", (), {"weights": model.state()})()

    def gradient():
        model.grad.zero_()
        method.loss(task, local, batch).backward()
        return model.grad.clone()

    with_old = gradient()
    local.round = 2  # before the departure: cross-entropy only
    plain = gradient()
    local.round = 4
    assert torch.allclose(with_old, plain, atol=1e-6)  # at the old model itself the pull is zero
    model.values += 0.05
    moved = gradient()
    local.round = 2
    assert (moved - gradient()).norm() > 1e-3
    assert all(layer.training for layer in model.module.modules())  # evaluation mode does not stay on


def test_the_head_unlearns_a_class_that_nobody_trains_on():
    """Read on the backbones without the rare samples, the head's recall of the class goes to zero."""
    rows = mpt.tracking(
        config(rounds=9), ["mpt", "ncm", "oracle", "head_holdout"], training="holdout"
    ).metrics
    rows = rows[(rows["method"] == "head_holdout") & (rows["metric"] == "rare_recall")].set_index("round")
    assert rows.loc[2, "value"] > 0.1  # what it knew when the vehicle left
    assert rows.loc[[7, 8, 9], "value"].max() < 0.02


def test_scores_agree_with_those_of_the_round_loop():
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 5, 200), rng.integers(0, 4, 200)
    ours, theirs = scores(labels, predicted, 3, 6), classification_scores(labels, predicted, 6)
    assert ours["rare_f1"] == pytest.approx(theirs["f1_3"])
    assert ours["rare_recall"] == pytest.approx(theirs["recall_3"])
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"])
    assert ours["macro_f1"] == pytest.approx(theirs["macro_f1"])
    assert scores(labels, predicted, 5, 6)["rare_f1"] == 0.0


# --- what the register's rules need ---------------------------------------------------------------------------


def judged(claim, frame):
    """Judge on a frame repeated for three seeds with a little noise; the word does not matter here."""
    copies = []
    for seed in range(3):
        noise = 1e-3 * np.random.default_rng(seed).normal(size=len(frame))
        deterministic = claim in ("MPT-10", "MPT-20")
        copies.append(frame.assign(seed=seed, value=frame["value"] + (0 if deterministic else noise)))
    origin = Provenance(data=(DataUse(name="digits", kind="real"),), profile="quick")
    found = verdict.judge(lookup(claim), pd.concat(copies, ignore_index=True), origin)
    assert len(found.parts) == len(lookup(claim).parts), found.sentence
    return found


def test_frames_of_the_rounds_can_be_judged():
    rows = mpt.headline(
        mpt.tracking(config(rounds=3, remaining_fractions=[0.05, 0.2], rare_classes=[1, 8]), mpt.HEADLINE)
    )
    one = mpt.averaged(rows[np.isclose(rows["remaining"], 0.05)], "rare_class")
    for claim in ("MPT-8", "MPT-9", "MPT-10"):
        judged(claim, one)
    judged("MPT-12", mpt.averaged(rows, "rare_class").replace({"remaining": {0.05: 0.01, 0.2: 0.1}}))
    judged("MPT-14", rows)


def test_frames_of_the_ablation_can_be_judged():
    study = mpt.tracking(config(rounds=6), mpt.ABLATION)
    rows = mpt.headline(study)
    judged("MPT-15", rows)
    both = pd.concat([rows, mpt.error_and_f1(study)], ignore_index=True)
    judged("MPT-17", both)
    errors = rows[rows["phase"] == "after"].replace({"method": {"mpt_scalar": "other"}})
    few, many = errors.assign(remaining=0.02), errors.assign(remaining=0.2)
    frame = mpt.averaged(pd.concat([few, many]), "rare_class")
    judged("MPT-18", frame.replace({"method": {"mpt": "mpt"}}))


def test_frames_of_tasks_and_backbones_can_be_judged():
    methods = ("mpt", "mpt_lite", "fedavg", "ccvr", "icarl", "sdc", "ldc")
    short = config(rounds=2, departure_round=1)
    tasks = mpt.headline(mpt.over_tasks(short, methods))
    judged("MPT-5", mpt.averaged(tasks, "rare_class"))
    averaged = mpt.averaged(tasks, "rare_class")
    judged("MPT-6", pd.concat([averaged, mpt.better_variant(averaged)]))
    shapes = mpt.headline(mpt.over_backbones(short, ["mpt", "mpt_lite"], task="fine"))
    assert set(shapes["backbone"]) == {"cnn3", "mobilenet_v3_small"}
    vit = shapes[shapes["backbone"] == "mobilenet_v3_small"].assign(backbone="vit_tiny")
    res = vit.assign(backbone="resnet18")
    all_backbones = pd.concat([shapes, vit, res])
    grid = pd.concat([all_backbones.assign(task=task) for task in ("objects", "coarse", "fine")])
    judged("MPT-7", mpt.averaged(grid, "rare_class"))


def test_the_better_variant_is_chosen_once_for_a_setting_and_not_for_each_seed():
    rows = pd.DataFrame(
        [
            (seed, method, phase, task, "cnn3", 0.01, 9, "rare_f1", value)
            for task, values in {"a": {"mpt": (0.5, 0.1), "mpt_lite": (0.2, 0.2), "sdc": (0.9, 0.9)},
                                 "b": {"mpt": (0.1, 0.1), "mpt_lite": (0.3, 0.0)}}.items()
            for method, found in values.items()
            for seed, value in enumerate(found)
            for phase in ("before", "after")
        ],
        columns=["seed", "method", "phase", "task", "backbone", "remaining", "round", "metric", "value"],
    )  # fmt: skip
    better = mpt.better_variant(rows)
    assert set(better["method"]) == {"better_variant"}
    late = better[better["phase"] == "after"].set_index(["task", "seed"])["value"].to_dict()
    assert late == {("a", 0): 0.5, ("a", 1): 0.1, ("b", 0): 0.3, ("b", 1): 0.0}


def test_mpt_is_read_by_two_distances_on_the_same_prototypes():
    study = mpt.over_tasks(config(rounds=3, departure_round=1), tasks=["fine"])
    rows = study.metrics
    error = rows[rows["metric"] == "prototype_error"].groupby("method")["value"].apply(list)
    assert error["mpt"] == error["mpt_euclidean"]
    read = mpt.by_readout(study).set_index(["metric", "prototype", "distance"])["value"]
    assert len(read) == 3 * 5
    own = mpt.headline(study)
    own = own[(own["phase"] == "after") & (own["metric"] == "rare_f1")].groupby("method")["value"].mean()
    for prototype, distance, method in (
        ("MPT", "Mahalanobis", "mpt"),
        ("MPT", "Euclidean", "mpt_euclidean"),
        ("MPT-lite", "Euclidean", "mpt_lite"),
    ):
        assert read["rare_f1", prototype, distance] == pytest.approx(own[method])


def test_a_linear_classifier_on_pixels_reads_digits_and_ignores_nothing_but_the_network():
    found = mpt.linear_on_pixels(config())
    assert list(found.index) == ["objects", "coarse", "fine"]
    assert found.between(0.9, 1).all()
    pd.testing.assert_series_equal(found, mpt.linear_on_pixels(config(rounds=3, lr=0.01)), check_exact=True)
    assert mpt.linear_on_pixels(config(pixel_noise=2.0)).max() < found.min()


def test_a_network_with_all_pictures_in_one_place_is_trained_as_the_vehicles_are():
    found = mpt.in_one_place(config(rounds=4, departure_round=1, local_epochs=2))
    assert list(found.index) == ["objects", "coarse", "fine"]
    assert found.between(0.6, 1).all()  # ten digits
    assert mpt.in_one_place(config(rounds=4, departure_round=1, lr=1e-6)).max() < 0.4


def test_frames_of_single_pages_can_be_judged():
    _, frame = mpt.reserve_or_train(config(rounds=9))
    assert frame["holdout"].dtype == bool
    errors = frame[(frame["metric"] == "prototype_error") & (frame["method"] == "ncm")]
    assert errors.groupby("holdout").size().tolist() == [7, 7]  # both uses, every round after the departure
    judged("MPT-19", frame)
    table, rows = mpt.demands(config())
    assert len(table) == 12
    assert judged("MPT-20", rows).word == "trend reproduced at reduced scale"
    judged("MPT-11", mpt.timing(config()).metrics)


def test_the_regimes_give_gain_and_ratio():
    found = mpt.gain_and_ratio(mpt.over_regimes(config(), [0.0, 1.0]))
    assert set(found["noise"]) == {0.0, 1.0}
    assert np.isfinite(found[["q", "gain", "gain_full_space"]]).all().all()


# --- small ones -----------------------------------------------------------------------------------------------


def test_noise_is_the_same_every_time_and_none_is_none():
    images = bench_of(config()).images
    assert add_noise(images, 0.0) is images
    noisy = add_noise(images, 0.7)
    assert noisy.checksum == add_noise(images, 0.7).checksum != images.checksum
    change = noisy.train.images.astype(float) - images.train.images
    assert 0.2 * images.train.images.std() < change.std() < 0.7 * images.train.images.std()  # clipped below


def test_backbones_are_kept_only_where_wanted():
    before = trained()
    study = mpt.tracking(config(keep_backbones=False, rare_classes=[3], rounds=2, departure_round=1), ["ncm"])
    assert trained() == before
    again = mpt.tracking(config(keep_backbones=True, rare_classes=[3], rounds=2, departure_round=1), ["ncm"])
    assert again.runs[0].reused  # the rows do not depend on it
    assert again.runs[0].key == study.runs[0].key


def test_vehicles_can_withhold_statistics_of_few_samples():
    study = mpt.tracking(
        config(min_count=8), ["ncm", "frozen"]
    )  # 7 rare samples over three vehicles: none is sent
    after = study.metrics[
        (study.metrics["phase"] == "after") & (study.metrics["metric"] == "prototype_error")
    ]
    last = after[after["round"] == 3].set_index("method")["value"]
    assert last["ncm"] == last["frozen"]  # nothing to estimate from, so the last prototype stays


def test_the_drift_bench_prefers_optimal_transport_for_symmetric_drift():
    rows = mpt.drift_bench(repeats=3)
    means = rows.groupby(["drift", "residual", "transport"])["value"].mean()
    for residual in ("any", "like features"):
        own = means["symmetric", residual]
        assert own["ot"] < 0.1 * own["none"]
        assert own["ot"] < own["zca"]
    assert means["symmetric", "any"]["zca"] > means["symmetric", "any"]["none"]  # worse than doing nothing


def test_the_drift_bench_gives_the_numbers_of_an_independent_computation():
    """For residuals between features and any direction; relative errors to two digits, other draws there."""
    rows = mpt.drift_bench(("none", "scalar", "zca", "ot"), repeats=24)
    means = rows[rows["residual"] == "between"].groupby(["drift", "transport"])["value"].mean()
    expected = {
        "symmetric": {"none": 0.242, "scalar": 0.248, "zca": 0.316, "ot": 0.013},
        "antisymmetric": {"none": 0.233, "scalar": 0.233, "zca": 0.394, "ot": 0.201},
        "mixed": {"none": 0.320, "scalar": 0.330, "zca": 0.467, "ot": 0.199},
    }
    for drift, numbers in expected.items():
        for kind, number in numbers.items():
            spread = 0.08 if kind == "zca" else 0.03  # whitening varies much from draw to draw
            assert means[drift, kind] == pytest.approx(number, abs=spread), (drift, kind)
        assert means[drift, "ot"] < means[drift, "none"]
    assert means["mixed", "zca"] > means["mixed", "none"]  # worse than doing nothing


def test_the_server_work_is_timed_for_each_form():
    study = mpt.server_scaling((40, 48), rank=4, repetitions=2)
    rows = study.metrics
    assert set(rows["form"]) == {"round", "ot", "zca", "chol", "scalar", "low rank"}
    assert (rows["value"] > 0).all()
    again = mpt.server_scaling((40, 48), rank=4, repetitions=2)
    assert again.runs[0].reused  # a stored run keeps what it found
    pd.testing.assert_frame_equal(again.metrics, rows)
    with pytest.raises(InputError, match="rank"):
        mpt.server_scaling((16,), rank=32)


def test_classes_go_by_label_or_name_and_bad_input_is_refused():
    bench = bench_of(config())
    named = settings.load("mpt", "smoke", SMALL | {"rare_classes": ["8"]})
    assert departures(bench, named)[0].rare_class == 8
    for changes, text in (
        ({"rare_classes": [11]}, "rare_class"),
        ({"rare_classes": ["truck"]}, "rare class"),
        ({"tasks": {"objects": {"rondos": 3}}}, "rondos"),
        ({"tasks": {"objects": {"departure_round": 9}}}, "departure_round"),
        ({"transport": "best"}, "transport"),
        ({"dataset_options": {"size": 3}}, "option"),
    ):
        with pytest.raises(InputError, match=text):
            mpt.tracking(settings.load("mpt", "smoke", SMALL | changes), ["ncm"])
    with pytest.raises(InputError, match="method"):
        mpt.tracking(config(), ["mtp"])
    with pytest.raises(InputError, match="task"):
        mpt.over_tasks(config(), tasks=["detection"])
    with pytest.raises(InputError, match="backbone"):
        mpt.over_backbones(config(), backbones=["vgg"])
