"""Figure 3 of the FedCKA paper: what the trained detectors see in one frame of each domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from fedlib.data.detection_boxes import Detections
from fedlib.data.nuscenes import CAMERAS, CLASSES, DOMAINS, Frame, Labels
from fedlib.errors import InputError
from fedlib.experiments.fedcka_detection import Scenes, client_models, trajectory_of
from fedlib.experiments.fedcka_domains import in_view
from fedlib.experiments.fedcka_footprint import labelled_runs
from fedlib.experiments.study import Study
from fedlib.federation.detection import detection_data

CLOSE = 10.0  # metres from the car
NEAR = 2.0  # metres between middles on the ground up to which a predicted box has found an annotated one
_NO_FRONT = ("traffic_cone", "barrier")


def fullest_frames(scenes: Scenes) -> dict[str, Frame]:
    """Return the validation frame of each domain with most boxes that a detector could find, the first of several.

    What could be found: boxes with a LiDAR or radar point, inside the square that the detector sees.
    """
    reach, found = scenes.task().config.reach, {}
    for domain in DOMAINS:
        tokens = scenes.driving.samples(domain, "val")
        counts = [int(seen(scenes.driving.labels(token), reach).sum()) for token in tokens]
        fullest = tokens[int(np.argmax(counts))]
        found[domain] = scenes.driving.frame(fullest, sweeps=scenes.settings.sweeps)
    return found


def fullest_camera(frame: Frame) -> str:
    """Return the camera with most boxes in its picture, the first of several in the order of ``CAMERAS``."""
    return max(CAMERAS, key=partial(in_view, frame=frame))


def predictions(
    study: Study, scenes: Scenes, frames: Mapping[str, Frame], methods: Sequence[str], seed: int = 0
) -> dict[str, dict[str, Detections]]:
    """Return what each client's own model finds in the frame of its domain, by method and domain.

    Args:
        study: runs of ``fedcka_detection.compare``.
        scenes: those of the runs.
        frames: by domain.
        methods: to show; FedCKA is the one with the threshold.
        seed: of the runs.

    Raises:
        InputError: no run of a method with this seed.
    """
    task, sweeps = scenes.task(), scenes.settings.sweeps
    model = task.build_model(0).to(task.device).eval()
    result: dict[str, dict[str, Detections]] = {}
    for name in methods:
        runs = [
            run
            for label, run in labelled_runs(study)
            if (label["method"], label["seed"]) == (name, seed) and label["masking"] != "percentage"
        ]
        if not runs:
            raise InputError(f"no run of method {name!r} has seed {seed}")
        states = client_models(scenes.method(name, {}), trajectory_of(runs[0]))
        result[name] = {}
        for domain, frame in frames.items():
            model.load_state_dict(states[domain])
            data = detection_data(scenes.driving, [frame.token], task.config, sweeps=sweeps)
            with torch.inference_mode():
                (result[name][domain],) = task.predict(model, data.batch(torch.tensor([0])))
    return result


def counted(
    frames: Mapping[str, Frame],
    found: Mapping[str, Mapping[str, Detections]],
    *,
    reach: float,
    least_score: float,
) -> pd.DataFrame:
    """Count what is drawn: columns method, domain, annotated, found, turned, missed, doubtful, nothing_there.

    A predicted box has found an annotated one of its class less than ``NEAR`` metres away that no box with a
    higher score has taken; it is ``turned`` if its heading is wrong by more than a right angle. Of the others
    those are ``doubtful`` that are as near to some annotated box, of another class or taken already; with the rest
    there is ``nothing_there``.

    Args:
        frames: by domain.
        found: by method and domain.
        reach: half the side of the square in which annotated boxes count, metres.
        least_score: predicted boxes below do not count.
    """
    rows = []
    for method, domain, matched in _all_matched(frames, found, reach, least_score):
        hits = int(matched.found.sum())
        rows.append(
            (method, domain, len(matched.found), hits, int(matched.turned.sum()), len(matched.found) - hits,
             matched.doubtful, matched.nothing_there)
        )  # fmt: skip
    names = ["annotated", "found", "turned", "missed", "doubtful", "nothing_there"]
    return pd.DataFrame(rows, columns=["method", "domain", *names])


def found_by_kind(
    frames: Mapping[str, Frame],
    found: Mapping[str, Mapping[str, Detections]],
    *,
    reach: float,
    least_score: float,
) -> pd.DataFrame:
    """Return how many annotated boxes of a kind are found in all frames: columns kind, annotated, method, found.

    Kinds: cars and all other classes, each up to ``CLOSE`` metres away and beyond. Arguments as ``counted``.
    """
    parts = []
    for method, domain, matched in _all_matched(frames, found, reach, least_score):
        labels = frames[domain].labels
        kept = seen(labels, reach)
        away = np.linalg.norm(labels.boxes[kept, :2], axis=1)
        what = np.where(labels.classes[kept] == CLASSES.index("car"), "car", "other class")
        where = np.where(away < CLOSE, f"nearer than {CLOSE:g} m", f"{CLOSE:g} m or more")
        kinds = [f"{name}, {place}" for name, place in zip(what, where, strict=True)]
        parts.append(pd.DataFrame({"method": method, "kind": kinds, "found": matched.found}))
    groups = pd.concat(parts).groupby(["kind", "method"], sort=False)["found"]
    return groups.agg(annotated="size", found="sum").reset_index()


def seen(labels: Labels, reach: float) -> np.ndarray:
    """Return which boxes (M,) have a point and their middle in the square that the detector sees."""
    inside: np.ndarray = (np.abs(labels.boxes[:, :2]) < reach).all(axis=1)
    return inside & (labels.num_points > 0)


@dataclass(frozen=True)
class _Matched:
    """What became of the boxes of a frame.

    Attributes:
        found: (M,), whether an annotated box that counts is found.
        turned: (M,), whether it is found by a box with the wrong heading.
        doubtful: predicted boxes near an annotated one of another class, or one that is taken.
        nothing_there: predicted boxes near no annotated one.
    """

    found: np.ndarray
    turned: np.ndarray
    doubtful: int
    nothing_there: int


def _all_matched(
    frames: Mapping[str, Frame],
    found: Mapping[str, Mapping[str, Detections]],
    reach: float,
    least_score: float,
) -> Iterator[tuple[str, str, _Matched]]:
    for method, by_domain in found.items():
        for domain, detections in by_domain.items():
            labels = frames[domain].labels
            yield method, domain, _matched(labels, seen(labels, reach), detections, least_score)


def _matched(labels: Labels, kept: np.ndarray, detections: Detections, least_score: float) -> _Matched:
    boxes, classes = labels.boxes[kept], labels.classes[kept]
    found, turned = np.zeros((2, len(boxes)), dtype=bool)
    doubtful = nothing = 0
    for row in np.argsort(-detections.scores, kind="stable"):
        if detections.scores[row] < least_score:
            break
        away = np.linalg.norm(boxes[:, :2] - detections.boxes[row, :2], axis=1)
        own = np.where(~found & (classes == detections.classes[row]), away, np.inf)
        if len(own) and own.min() < NEAR:
            hit = int(own.argmin())
            found[hit] = True
            wrong = np.cos(boxes[hit, 6] - detections.boxes[row, 6]) < 0
            turned[hit] = wrong and CLASSES[classes[hit]] not in _NO_FRONT
        elif len(away) and away.min() < NEAR:
            doubtful += 1
        else:
            nothing += 1
    return _Matched(found, turned, doubtful, nothing)
