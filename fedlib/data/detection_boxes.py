"""Predicted and annotated 3D boxes of some samples, with the devkit's filters, ready to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlib.data.nuscenes.frame import ATTRIBUTES, CLASSES, Labels, moved
from fedlib.data.nuscenes.root import DrivingSet
from fedlib.errors import InputError

RANGES = dict(zip(CLASSES, (50, 50, 50, 50, 50, 40, 40, 40, 30, 30)))  # metres from the car
MOST_BOXES = 500  # in a sample
_MOVING = 0.2  # m/s


@dataclass(frozen=True, eq=False)
class Detections:
    """Predicted boxes of one sample, in the frame of reference of :class:`fedlib.data.nuscenes.Frame`.

    Attributes:
        boxes: float (K, 9): x, y, z, w, l, h, yaw, vx, vy.
        classes: int (K,), index into ``CLASSES``.
        scores: float (K,), > 0.
        attributes: int (K,), index into ``ATTRIBUTES``, -1 for none; None takes :func:`speed_attributes`.

    Raises:
        InputError: shapes differ, a value is not finite, a size or score not positive, or an index out of range.
    """

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    attributes: np.ndarray | None = None

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, dtype=np.float64)
        classes = np.asarray(self.classes, dtype=np.int64)
        scores = np.asarray(self.scores, dtype=np.float64)
        if boxes.ndim != 2 or boxes.shape[1] != 9 or {classes.shape, scores.shape} != {(len(boxes),)}:
            raise InputError(
                f"boxes {boxes.shape}, classes {classes.shape}, scores {scores.shape}; allowed: (K, 9), (K,), (K,)"
            )
        if len(boxes) > MOST_BOXES:
            raise InputError(f"{len(boxes)} boxes in a sample; allowed: at most {MOST_BOXES}")
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise InputError("a predicted box or score is not finite; allowed: finite numbers")
        if (boxes[:, 3:6] <= 0).any() or (scores <= 0).any():
            raise InputError("a predicted size or score is not positive; allowed: > 0")
        if len(classes) and not 0 <= classes.min() <= classes.max() < len(CLASSES):
            raise InputError(f"a predicted class is not in 0 to {len(CLASSES) - 1}")
        attributes = speed_attributes(classes, boxes[:, 7:9]) if self.attributes is None else self.attributes
        for name, value in (("boxes", boxes), ("classes", classes), ("scores", scores)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "attributes", np.asarray(attributes, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Truth:
    """What counts in some samples: annotated boxes in the global frame after the devkit's filters.

    The filters: a box counts if it is nearer than the range of its class, has at least one LiDAR or radar point,
    and is not a cycle in a bicycle rack. Where a detector sees less far than the devkit's ranges, both can end
    there: what nobody could have found then counts neither as missed nor as found.

    Attributes:
        driving: where the samples come from.
        tokens: of the samples.
        labels: boxes that count, by sample.
        poses: (4, 4) of the car, by sample.
        racks: rotation (3, 3), middle (3,) and half sizes along its axes (3,) of each rack, by sample.
        reach: metres from the car beyond which nothing counts, if that is nearer than the range of the class.
    """

    driving: DrivingSet
    tokens: tuple[str, ...]
    labels: Mapping[str, Labels]
    poses: Mapping[str, np.ndarray]
    racks: Mapping[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]
    reach: float = np.inf

    @property
    def ranges(self) -> dict[str, float]:
        """Metres from the car up to which each class counts."""
        return {name: min(limit, self.reach) for name, limit in RANGES.items()}

    @property
    def counts(self) -> dict[str, int]:
        """Number of boxes of each class that occurs: the available classes."""
        numbers = np.zeros(len(CLASSES), dtype=np.int64)
        for labels in self.labels.values():
            numbers += np.bincount(labels.classes, minlength=len(CLASSES))
        return {name: int(number) for name, number in zip(CLASSES, numbers) if number}


def speed_attributes(classes: np.ndarray, velocities: np.ndarray) -> np.ndarray:
    """Return attributes (K,) for a detector that predicts none: by speed above 0.2 m/s, else the usual ones.

    Args:
        classes: (K,).
        velocities: (K, 2), m/s.
    """
    usual = {
        "bus": ("vehicle.moving", "vehicle.stopped"),
        "pedestrian": ("pedestrian.moving", "pedestrian.standing"),
        "motorcycle": ("cycle.with_rider", "cycle.without_rider"),
        "bicycle": ("cycle.with_rider", "cycle.without_rider"),
        "traffic_cone": None,
        "barrier": None,
    }
    pairs = [usual.get(name, ("vehicle.moving", "vehicle.parked")) for name in CLASSES]
    table = np.array(
        [[-1, -1] if pair is None else [ATTRIBUTES.index(name) for name in pair] for pair in pairs]
    )
    still = (np.linalg.norm(velocities, axis=1) <= _MOVING).astype(np.int64)
    chosen: np.ndarray = table[np.asarray(classes, dtype=np.int64), still]
    return chosen


def truth_of(driving: DrivingSet, tokens: Sequence[str], reach: float = np.inf) -> Truth:
    """Collect what counts in some samples.

    Args:
        driving: where they come from.
        tokens: of the samples.
        reach: see :class:`Truth`; infinity keeps the devkit's ranges.

    Raises:
        InputError: no sample, an unknown one, a reach that is not positive, or not one box that counts.
    """
    if not tokens:
        raise InputError("no sample to evaluate on; allowed: at least one")
    if not reach > 0:
        raise InputError(f"reach is {reach}; allowed: above 0 metres")
    labels, poses, racks = {}, {}, {}
    for token in tokens:
        poses[token] = driving.ego_to_global(token)
        racks[token] = driving.racks(token)
        found = driving.labels(token, in_global=True)
        kept = _counts(found.boxes, found.classes, poses[token], racks[token], reach) & (found.num_points > 0)
        rows = np.flatnonzero(kept)
        labels[token] = Labels(
            found.boxes[rows],
            found.classes[rows],
            found.attributes[rows],
            found.visibility[rows],
            found.num_points[rows],
            tuple(found.tokens[row] for row in rows),
        )
    truth = Truth(driving, tuple(tokens), labels, poses, racks, reach)
    if not truth.counts:
        raise InputError(f"none of {len(tokens)} samples has a box that counts (in range, with a point)")
    return truth


def results(truth: Truth, detections: Mapping[str, Detections]) -> dict[str, Any]:
    """Return predictions as the content of a nuScenes result file (JSON)."""
    check_samples(truth, detections)
    rows: dict[str, list[dict[str, Any]]] = {}
    for token in truth.tokens:
        found = detections[token]
        assert found.attributes is not None
        boxes = moved(found.boxes, truth.poses[token])
        rows[token] = [
            {
                "sample_token": token,
                "translation": box[:3].tolist(),
                "size": box[3:6].tolist(),
                "rotation": [float(np.cos(box[6] / 2)), 0.0, 0.0, float(np.sin(box[6] / 2))],
                "velocity": box[7:9].tolist(),
                "detection_name": CLASSES[kind],
                "detection_score": float(score),
                "attribute_name": ATTRIBUTES[attribute] if attribute >= 0 else "",
            }
            for box, kind, score, attribute in zip(boxes, found.classes, found.scores, found.attributes)
        ]
    sources = {"use_camera": True, "use_lidar": True}
    return {"meta": sources | dict.fromkeys(("use_radar", "use_map", "use_external"), False), "results": rows}


def check_samples(truth: Truth, detections: Mapping[str, Detections]) -> None:
    """Raise InputError unless predictions are for exactly the samples of the annotations."""
    if set(detections) != set(truth.tokens):
        both = len(set(detections) & set(truth.tokens))
        raise InputError(
            f"predictions for {len(detections)} samples, annotations for {len(truth.tokens)}, {both} in common; "
            "allowed: the same samples"
        )


def _counts(
    boxes: np.ndarray,
    classes: np.ndarray,
    pose: np.ndarray,
    racks: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    reach: float,
) -> np.ndarray:
    """Say which boxes (M, 9) of the global frame are in range and not cycles in racks."""
    limits = np.minimum([RANGES[name] for name in CLASSES], reach)[classes]
    kept: np.ndarray = np.linalg.norm(boxes[:, :2] - pose[:2, 3], axis=1) < limits
    cycle = np.isin(classes, [CLASSES.index("bicycle"), CLASSES.index("motorcycle")])
    for rotation, middle, half in racks:
        inside = (np.abs((boxes[:, :3] - middle) @ rotation) <= half).all(axis=1)
        kept &= ~(cycle & inside)
    return kept


def in_global(truth: Truth, detections: Mapping[str, Detections]) -> dict[str, Detections]:
    """Move predictions to the global frame and drop those that do not count."""
    check_samples(truth, detections)
    result = {}
    for token in truth.tokens:
        found = detections[token]
        assert found.attributes is not None
        boxes = moved(found.boxes, truth.poses[token])
        kept = _counts(boxes, found.classes, truth.poses[token], truth.racks[token], truth.reach)
        result[token] = Detections(
            boxes[kept], found.classes[kept], found.scores[kept], found.attributes[kept]
        )
    return result
