"""mAP, NDS and CAP over available classes: by hand, against the devkit, and with annotations as predictions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from fedlib import seeds
from fedlib.data.detection_boxes import (
    MOST_BOXES,
    RANGES,
    Detections,
    Truth,
    results,
    speed_attributes,
    truth_of,
)
from fedlib.data.detection_metrics import (
    ERRORS,
    THRESHOLDS,
    DetectionScores,
    devkit_metrics,
    evaluate,
    evaluate_with_devkit,
    weighted_mean,
)
from fedlib.data.nuscenes import ATTRIBUTES, CLASSES, DrivingSet, Labels
from fedlib.errors import InputError

CAR, PEDESTRIAN, CONE, BARRIER = (
    CLASSES.index(name) for name in ("car", "pedestrian", "traffic_cone", "barrier")
)
PARKED = ATTRIBUTES.index("vehicle.parked")


def labels(rows: list[list[float]], classes: list[int], attributes: list[int] | None = None) -> Labels:
    count = len(rows)
    marks = np.array([PARKED] * count if attributes is None else attributes, dtype=np.int64)
    boxes = np.array(rows, dtype=np.float64).reshape(-1, 9)
    ones = np.ones(count, dtype=np.int64)
    return Labels(boxes, np.array(classes, dtype=np.int64), marks, ones, ones, tuple(map(str, range(count))))


def truth(**samples: Labels) -> Truth:
    poses = {token: np.eye(4) for token in samples}
    return Truth(None, tuple(samples), samples, poses, {token: [] for token in samples})  # type: ignore[arg-type]


def row(
    x: float, y: float = 0.0, *, yaw: float = 0.0, speed: tuple[float, float] = (0.0, 0.0)
) -> list[float]:
    return [x, y, 0.5, 2.0, 4.0, 1.5, yaw, *speed]


def guess(rows: list[list[float]], classes: list[int], scores: list[float], **rest: np.ndarray) -> Detections:
    return Detections(np.array(rows, dtype=float).reshape(-1, 9), np.array(classes), np.array(scores), **rest)


def annotations_as_predictions(driving: DrivingSet, tokens: tuple[str, ...]) -> dict[str, Detections]:
    found = {}
    for token in tokens:
        item = driving.labels(token)
        kept = item.num_points > 0
        boxes = np.nan_to_num(item.boxes[kept])
        found[token] = Detections(boxes, item.classes[kept], np.full(kept.sum(), 0.9), item.attributes[kept])
    return found


def noisy(perfect: Mapping[str, Detections], seed: int) -> dict[str, Detections]:
    """Every box three times, shifted by different amounts, with coarse scores so that there are ties."""
    rng = seeds.rng(seed, "noisy")
    found = {}
    for token, item in perfect.items():
        copies = []
        for spread in (0.3, 1.0, 4.0):
            boxes = item.boxes + spread * rng.normal(size=item.boxes.shape) * [1, 1, 1, 0, 0, 0, 1, 1, 1]
            boxes[:, 3:6] *= np.exp(0.1 * rng.normal(size=(len(boxes), 3)))
            copies.append(boxes)
        boxes = np.concatenate(copies)
        classes = np.tile(item.classes, 3)
        found[token] = Detections(boxes, classes, rng.integers(1, 6, len(boxes)) / 6)
    return found


# --- by hand --------------------------------------------------------------------------------------------------


def test_average_precision_by_hand() -> None:
    """Two cars; a hit, then a miss, then a hit. Precision is 1 up to recall 0.5 and then falls: at recall 0.5 two
    values follow each other (1 and 1/2), and it rises to 2/3 at recall 1."""
    scene = truth(s=labels([row(0), row(20)], [CAR, CAR]))
    found = {"s": guess([row(0.1), row(10), row(20.2)], [CAR] * 3, [0.9, 0.8, 0.7])}
    scores = evaluate(scene, found)
    recalls = np.arange(11, 101) / 100
    precision = np.where(recalls < 0.5, 1.0, 0.5 + (recalls - 0.5) / 0.5 * (2 / 3 - 0.5))
    expected = (precision - 0.1).mean() / 0.9
    np.testing.assert_allclose(scores.ap["car"], expected, atol=1e-12)
    assert scores.cap == pytest.approx(expected)


def test_only_thresholds_beyond_the_distance_match() -> None:
    scene = truth(s=labels([row(0)], [CAR]))
    assert evaluate(scene, {"s": guess([row(1.5)], [CAR], [0.5])}).ap["car"] == pytest.approx((0, 0, 1, 1))
    assert evaluate(scene, {"s": guess([row(1.0)], [CAR], [0.5])}).ap["car"] == pytest.approx((0, 0, 1, 1))


def test_errors_by_hand() -> None:
    scene = truth(s=labels([row(0, speed=(3.0, 0.0))], [CAR]))
    moved = [0.3, 0.4, 0.5, 2.0, 2.0, 1.5, 0.25, 3.0, 1.5]  # half as long: IoU 1/2
    scores = evaluate(scene, {"s": guess([moved], [CAR], [0.5], attributes=np.array([PARKED]))})
    expected = {"trans_err": 0.5, "scale_err": 0.5, "orient_err": 0.25, "vel_err": 1.5, "attr_err": 0.0}
    assert scores.errors["car"] == pytest.approx(expected)
    # mAP 1 at 1, 2, 4 m, and not at 0.5 m, where the distance is not below the threshold
    assert scores.mean_ap == pytest.approx(0.75)
    assert scores.nds == pytest.approx((5 * 0.75 + 0.5 + 0.5 + 0.75 + 0.0 + 1.0) / 10)


def test_a_barrier_turned_by_half_a_circle_is_right_and_cones_have_no_heading() -> None:
    scene = truth(s=labels([row(0), row(9)], [BARRIER, CONE], [-1, -1]))
    found = {"s": guess([row(0, yaw=np.pi), row(9, yaw=1.0)], [BARRIER, CONE], [0.5, 0.5])}
    scores = evaluate(scene, found)
    assert scores.errors["barrier"]["orient_err"] == pytest.approx(0, abs=1e-12)
    assert set(scores.errors["barrier"]) == {"trans_err", "scale_err", "orient_err"}
    assert set(scores.errors["traffic_cone"]) == {"trans_err", "scale_err"}
    assert scores.tp_errors["vel_err"] == scores.tp_errors["attr_err"] == 1.0  # defined for no class
    assert scores.nds == pytest.approx(0.8)


def test_errors_without_an_annotation_do_not_count() -> None:
    missing = labels([[*row(0)[:7], np.nan, np.nan], row(15)], [CAR, PEDESTRIAN], [-1, 2])
    found = {"s": guess([row(0), row(15)], [CAR, PEDESTRIAN], [0.5, 0.5])}
    scores = evaluate(truth(s=missing), found)
    assert set(scores.errors["car"]) == {"trans_err", "scale_err", "orient_err"}
    assert scores.nds == pytest.approx(1.0)


def test_absent_classes_neither_help_nor_hurt() -> None:
    scene = truth(s=labels([row(0)], [CAR]))
    alone = evaluate(scene, {"s": guess([row(0)], [CAR], [0.5])})
    more = evaluate(scene, {"s": guess([row(0), row(5)], [CAR, PEDESTRIAN], [0.5, 0.9])})
    assert alone == more
    assert alone.mean_ap == pytest.approx(1.0)
    assert list(alone.ap) == ["car"]


def test_equal_scores_are_matched_from_the_last_one() -> None:
    scene = truth(s=labels([row(0)], [CAR]))
    first_right = evaluate(scene, {"s": guess([row(0), row(9)], [CAR, CAR], [0.5, 0.5])})
    last_right = evaluate(scene, {"s": guess([row(9), row(0)], [CAR, CAR], [0.5, 0.5])})
    assert last_right.mean_ap > 0.99
    assert first_right.mean_ap < 0.6


def test_no_prediction_scores_zero() -> None:
    scene = truth(s=labels([row(0), row(9)], [CAR, PEDESTRIAN]))
    scores = evaluate(scene, {"s": guess([], [], [])})
    assert scores.mean_ap == scores.nds == scores.cap == 0.0


def test_cap_is_nan_without_a_car() -> None:
    scene = truth(s=labels([row(0)], [PEDESTRIAN], [0]))
    assert np.isnan(evaluate(scene, {"s": guess([row(0)], [PEDESTRIAN], [0.5])}).cap)


def test_attributes_follow_speed() -> None:
    speeds = np.array([[0.1, 0.1], [3.0, 0.0]])
    names = {
        "car": ("vehicle.parked", "vehicle.moving"),
        "bus": ("vehicle.stopped", "vehicle.moving"),
        "pedestrian": ("pedestrian.standing", "pedestrian.moving"),
        "bicycle": ("cycle.without_rider", "cycle.with_rider"),
    }
    for name, expected in names.items():
        found = speed_attributes(np.full(2, CLASSES.index(name)), speeds)
        assert tuple(ATTRIBUTES[k] for k in found) == expected
    assert speed_attributes(np.array([CONE, BARRIER]), speeds).tolist() == [-1, -1]


def test_averages_weigh_by_scenes() -> None:
    weights = {"A": 53, "B": 24, "C": 58, "D": 12, "E": 3}
    fedcka = {"A": 0.65, "B": 0.63, "C": 0.64, "D": 0.59, "E": 0.50}
    assert weighted_mean(fedcka, weights) == pytest.approx(0.635, abs=5e-4)  # the paper's Tables II and VI
    with pytest.raises(InputError, match="domains F have no weight"):
        weighted_mean({"F": 1.0}, weights)
    with pytest.raises(InputError, match="add up to 0"):
        weighted_mean({"A": 1.0}, {"A": 0})


# --- against the devkit ---------------------------------------------------------------------------------------


def test_settings_are_those_of_the_devkit() -> None:
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.detection.constants import ATTRIBUTE_NAMES, DETECTION_NAMES, TP_METRICS

    config = config_factory("detection_cvpr_2019")
    assert config.class_range == RANGES
    assert tuple(config.dist_ths) == THRESHOLDS
    assert (config.min_recall, config.min_precision, config.dist_th_tp) == (0.1, 0.1, 2.0)
    assert config.max_boxes_per_sample == MOST_BOXES
    assert (list(CLASSES), list(ATTRIBUTES), list(ERRORS)) == (DETECTION_NAMES, ATTRIBUTE_NAMES, TP_METRICS)


@pytest.mark.parametrize("domain", ["A", "E"])
def test_annotations_as_predictions_are_perfect(generated: DrivingSet, domain: str) -> None:
    tokens = generated.samples(domain, "val")
    scene = truth_of(generated, tokens)
    for scores in (
        f(scene, annotations_as_predictions(generated, tokens)) for f in (evaluate, evaluate_with_devkit)
    ):
        assert scores.mean_ap == pytest.approx(1.0, abs=1e-9)
        assert scores.nds == pytest.approx(1.0, abs=1e-9)
        assert scores.cap == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("domain", ["A", "E"])
def test_the_devkit_gives_the_same_on_the_same_boxes(generated: DrivingSet, domain: str) -> None:
    tokens = generated.samples(domain, "val")
    scene = truth_of(generated, tokens)
    for seed in range(3):
        found = noisy(annotations_as_predictions(generated, tokens), seed)
        own, devkit = evaluate(scene, found), evaluate_with_devkit(scene, found)
        assert same(own, devkit)
        assert 0.01 < own.mean_ap < 0.95


def test_a_nearer_reach_limits_annotations_and_predictions_in_both(generated: DrivingSet) -> None:
    tokens = generated.samples("A", "val")
    scene = truth_of(generated, tokens, reach=9.0)
    assert 0 < sum(scene.counts.values()) < sum(truth_of(generated, tokens).counts.values())
    perfect = annotations_as_predictions(generated, tokens)
    assert evaluate(scene, perfect).mean_ap == pytest.approx(1.0, abs=1e-9), "far boxes are no false alarms"
    found = noisy(perfect, 0)
    assert same(evaluate(scene, found), evaluate_with_devkit(scene, found))
    with pytest.raises(InputError, match="reach"):
        truth_of(generated, tokens, reach=0.0)


def test_the_devkit_gives_the_same_on_a_real_frame(real: DrivingSet) -> None:
    (item,) = real.scenes.values()
    scene = truth_of(real, item.samples)
    assert scene.counts["pedestrian"] == 10
    found = noisy(annotations_as_predictions(real, item.samples), 0)
    assert same(evaluate(scene, found), evaluate_with_devkit(scene, found))


def same(one: DetectionScores, two: DetectionScores) -> bool:
    assert one.boxes == two.boxes
    for name in one.ap:
        np.testing.assert_allclose(one.ap[name], two.ap[name], atol=1e-9)
        assert one.errors[name].keys() == two.errors[name].keys()
        for error, value in one.errors[name].items():
            assert value == pytest.approx(two.errors[name][error], abs=1e-9)
    return True


def test_the_devkits_own_evaluation_of_a_result_file_agrees(generated: DrivingSet, tmp_path: Path) -> None:
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.detection.evaluate import DetectionEval

    tokens = generated.samples("A", "val")
    scene = truth_of(generated, tokens)
    found = noisy(annotations_as_predictions(generated, tokens), 5)
    (tmp_path / "results.json").write_text(json.dumps(results(scene, found)))
    config = config_factory("detection_cvpr_2019")
    official = DetectionEval(
        generated.devkit,
        config,
        str(tmp_path / "results.json"),
        "A_val",
        str(tmp_path / "out"),
        verbose=False,
    )
    metrics, _ = official.evaluate()
    ours = devkit_metrics(scene, found)
    assert metrics.mean_dist_aps == ours.mean_dist_aps
    assert metrics.nd_score == ours.nd_score
    assert scene.counts == {
        name: sum(box.detection_name == name for box in official.gt_boxes.all) for name in scene.counts
    }


def test_an_absent_class_counts_as_zero_in_the_devkit_and_not_here(generated: DrivingSet) -> None:
    tokens = generated.samples("E", "val")
    scene = truth_of(generated, tokens)
    found = annotations_as_predictions(generated, tokens)
    assert devkit_metrics(scene, found).mean_ap == pytest.approx(len(scene.counts) / 10)
    assert evaluate(scene, found).mean_ap == pytest.approx(1.0)


def test_no_prediction_at_all_does_not_stop_the_devkit(generated: DrivingSet) -> None:
    tokens = generated.samples("A", "val")
    scene = truth_of(generated, tokens)
    nothing = dict.fromkeys(tokens, guess([], [], []))
    assert devkit_metrics(scene, nothing).mean_ap == 0
    assert same(evaluate(scene, nothing), evaluate_with_devkit(scene, nothing))


def test_cycles_in_racks_boxes_out_of_range_and_without_points_do_not_count(
    opened: Callable[[], DrivingSet], tmp_path: Path
) -> None:
    folder = tmp_path / "copy" / "v1.0-synth"
    records = json.loads((folder / "sample_annotation.json").read_text())
    instances = json.loads((folder / "instance.json").read_text())
    categories = json.loads((folder / "category.json").read_text())
    categories.append({"token": "rack", "name": "static_object.bicycle_rack", "description": "rack"})
    kinds = {item["token"]: item["category_token"] for item in instances}
    names = {item["token"]: item["name"] for item in categories}
    chosen = next(
        r for r in records if names[kinds[r["instance_token"]]] == "vehicle.motorcycle" and r["num_lidar_pts"]
    )
    instances.append(
        {"token": "i", "category_token": "rack", "nbr_annotations": 1}
        | {"first_annotation_token": "r", "last_annotation_token": "r"}
    )
    records.append(
        chosen | {"token": "r", "instance_token": "i", "size": [3.0, 3.0, 3.0], "prev": "", "next": ""}
    )
    (folder / "category.json").write_text(json.dumps(categories))
    (folder / "instance.json").write_text(json.dumps(instances))
    driving = opened()
    token = chosen["sample_token"]
    perfect = annotations_as_predictions(driving, (token,))
    before = truth_of(driving, [token]).counts
    (folder / "sample_annotation.json").write_text(json.dumps(records))
    driving = opened()
    scene = truth_of(driving, [token])
    assert scene.counts.get("motorcycle", 0) == before["motorcycle"] - 1
    assert same(evaluate(scene, perfect), evaluate_with_devkit(scene, perfect))
    assert evaluate(scene, perfect).mean_ap == pytest.approx(1.0)  # the prediction in the rack is no mistake


# --- what is refused ------------------------------------------------------------------------------------------


def test_other_samples_than_annotated_are_refused_with_both_counts() -> None:
    scene = truth(a=labels([row(0)], [CAR]), b=labels([], []))
    with pytest.raises(InputError, match="predictions for 1 samples, annotations for 2, 1 in common"):
        evaluate(scene, {"a": guess([], [], [])})


def test_samples_without_a_box_that_counts_are_refused(
    opened: Callable[[], DrivingSet], tmp_path: Path
) -> None:
    for name in ("sample_annotation", "instance"):
        (tmp_path / "copy" / "v1.0-synth" / f"{name}.json").write_text("[]")
    driving = opened()
    with pytest.raises(InputError, match="none of 3 samples has a box that counts"):
        truth_of(driving, driving.samples("E", "val"))
    with pytest.raises(InputError, match="no sample"):
        truth_of(driving, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": np.zeros((1, 7))}, "allowed: "),
        ({"scores": np.ones(2)}, "allowed: "),
        ({"classes": np.zeros(2)}, "allowed: "),
        ({"boxes": np.full((1, 9), np.nan)}, "not finite"),
        ({"scores": np.zeros(1)}, "not positive"),
        ({"boxes": np.zeros((1, 9))}, "not positive"),
        ({"classes": np.array([10])}, "class is not in 0 to 9"),
    ],
)
def test_bad_predictions_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    good = guess([row(0)], [CAR], [0.5])
    with pytest.raises(InputError, match=message):
        dataclasses.replace(good, **change)


def test_too_many_boxes_are_refused() -> None:
    with pytest.raises(InputError, match="501 boxes in a sample; allowed: at most 500"):
        guess([row(k) for k in range(501)], [CAR] * 501, [0.5] * 501)
