"""Counting what pictures of detections show, on boxes placed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from fedlib.data.detection_boxes import Detections
from fedlib.data.nuscenes import CLASSES, Frame
from fedlib.experiments import fedcka_pictures as pictures

CAR, TRUCK = CLASSES.index("car"), CLASSES.index("truck")


def boxes(*places: tuple[float, float]) -> np.ndarray:
    return np.array([[x, y, 0, 2, 4, 2, 0, 0, 0] for x, y in places])


def frame(*places: tuple[float, float], points: tuple[int, ...]) -> Frame:
    labels = SimpleNamespace(
        boxes=boxes(*places), classes=np.full(len(places), CAR), num_points=np.array(points)
    )
    return cast(Frame, SimpleNamespace(labels=labels))


def count(one: Frame, *found: tuple[float, float, int, float]) -> dict[str, Any]:
    detections = Detections(
        boxes(*[(x, y) for x, y, *_ in found]),
        np.array([f[2] for f in found]),
        np.array([f[3] for f in found]),
    )
    table = pictures.counted({"A": one}, {"fedavg": {"A": detections}}, reach=20.0, least_score=0.3)
    return {str(name): value for name, value in table.iloc[0].items()}


def test_a_box_is_found_once_by_its_class_within_two_metres() -> None:
    one = frame((5, 0), (10, 0), (30, 0), (0, 5), points=(3, 3, 3, 0))
    row = count(
        one,
        (5.5, 0, CAR, 0.9),
        (5.2, 0, CAR, 0.8),  # the same car again
        (10, 1, TRUCK, 0.7),  # a car for a truck
        (-8, 0, CAR, 0.6),  # nobody there
        (10, 0, CAR, 0.2),  # below the least score
    )
    assert row["annotated"] == 2, "not what lies outside the square, nor what has no point"
    assert (row["found"], row["doubtful"], row["nothing_there"], row["missed"]) == (1, 2, 1, 1)


def test_the_higher_score_comes_first_and_a_frame_may_have_no_box() -> None:
    one = frame((5, 0), (8, 0), points=(1, 1))
    row = count(one, (6.4, 0, CAR, 0.5), (5.0, 0, CAR, 0.9))
    assert (row["found"], row["missed"]) == (2, 0), "the second takes the car that is left"
    empty = count(frame((25, 0), points=(1,)), (1, 1, CAR, 0.9))
    assert (empty["annotated"], empty["nothing_there"]) == (0, 1)


def test_found_boxes_with_the_wrong_heading_are_turned_unless_they_have_no_front() -> None:
    labels = SimpleNamespace(
        boxes=boxes((5, 0), (10, 0), (0, 8)),
        classes=np.array([CAR, CAR, CLASSES.index("barrier")]),
        num_points=np.ones(3),
    )
    one = cast(Frame, SimpleNamespace(labels=labels))
    found = boxes((5, 0), (10, 0), (0, 8))
    found[:, 6] = [np.pi - 0.1, 1.4, np.pi]
    detections = Detections(found, labels.classes, np.full(3, 0.9))
    row = pictures.counted({"A": one}, {"x": {"A": detections}}, reach=20.0, least_score=0.3).iloc[0]
    assert (row["found"], row["turned"]) == (3, 1)


def test_kinds_are_counted_over_all_frames() -> None:
    frames = {"A": frame((5, 0), (12, 0), points=(1, 1)), "B": frame((0, 6), points=(1,))}
    hit = Detections(boxes((5, 0)), np.array([CAR]), np.array([0.9]))
    none = Detections(boxes((5, 0))[:0], np.zeros(0), np.zeros(0))
    table = pictures.found_by_kind(
        frames, {"x": {"A": hit, "B": none}, "y": {"A": none, "B": none}}, reach=20.0, least_score=0.3
    )
    found = table.set_index(["method", "kind"])
    near, far = "car, nearer than 10 m", "car, 10 m or more"
    assert found.loc[("x", near)].to_list() == [2, 1]
    assert found.loc[("x", far)].to_list() == [1, 0]
    assert found.loc[("y", near)].to_list() == [2, 0]
