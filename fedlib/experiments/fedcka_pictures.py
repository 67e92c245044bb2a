"""Figure 3 of the FedCKA paper: what the trained detectors see in one frame of each domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch

from fedlib.data.detection_boxes import Detections
from fedlib.data.nuscenes import CAMERAS, DOMAINS, Frame, Labels
from fedlib.errors import InputError
from fedlib.experiments.fedcka_detection import Scenes, client_models, trajectory_of
from fedlib.experiments.fedcka_domains import in_view
from fedlib.experiments.fedcka_footprint import labelled_runs
from fedlib.experiments.study import Study
from fedlib.federation.detection import detection_data

NEAR = 2.0  # metres between middles on the ground up to which a predicted box has found an annotated one


def fullest_frames(scenes: Scenes) -> dict[str, Frame]:
    """Return the validation frame of each domain with most boxes that a detector could find, the first of several.

    What could be found: boxes with a LiDAR or radar point, inside the square that the detector sees.
    """
    reach, found = scenes.task().config.reach, {}
    for domain in DOMAINS:
        tokens = scenes.driving.samples(domain, "val")
        counts = [int(seen(scenes.driving.labels(token), reach).sum()) for token in tokens]
        found[domain] = scenes.driving.frame(tokens[int(np.argmax(counts))])
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
    task = scenes.task()
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
            data = detection_data(scenes.driving, [frame.token], task.config)
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
    """Count what is drawn: columns method, domain, annotated, found, doubtful, nothing_there, missed.

    A predicted box has found an annotated one of its class less than ``NEAR`` metres away that no box with a
    higher score has taken. Of the others those are ``doubtful`` that are as near to some annotated box, of another
    class or taken already; with the rest there is ``nothing_there``.

    Args:
        frames: by domain.
        found: by method and domain.
        reach: half the side of the square in which annotated boxes count, metres.
        least_score: predicted boxes below do not count.
    """
    rows = []
    for method, by_domain in found.items():
        for domain, detections in by_domain.items():
            labels = frames[domain].labels
            kept = seen(labels, reach)
            rows.append((method, domain, *_counts(labels, kept, detections, least_score)))
    names = ["annotated", "found", "doubtful", "nothing_there"]
    table = pd.DataFrame(rows, columns=["method", "domain", *names])
    return table.assign(missed=table["annotated"] - table["found"])


def seen(labels: Labels, reach: float) -> np.ndarray:
    """Return which boxes (M,) have a point and their middle in the square that the detector sees."""
    inside: np.ndarray = (np.abs(labels.boxes[:, :2]) < reach).all(axis=1)
    return inside & (labels.num_points > 0)


def _counts(
    labels: Labels, kept: np.ndarray, detections: Detections, least_score: float
) -> tuple[int, int, int, int]:
    boxes, classes = labels.boxes[kept, :2], labels.classes[kept]
    free = np.ones(len(boxes), dtype=bool)
    right = near = other = 0
    for row in np.argsort(-detections.scores, kind="stable"):
        if detections.scores[row] < least_score:
            break
        away = np.linalg.norm(boxes - detections.boxes[row, :2], axis=1)
        own = np.where(free & (classes == detections.classes[row]), away, np.inf)
        if len(own) and own.min() < NEAR:
            free[int(own.argmin())] = False
            right += 1
        elif len(away) and away.min() < NEAR:
            near += 1
        else:
            other += 1
    return len(boxes), right, near, other
