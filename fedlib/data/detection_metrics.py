"""mAP, NDS and CAP of 3D detections in the samples of one domain, over the classes that occur there.

Definitions: nuScenes detection challenge (Caesar et al., 2020, Section 4.1, Eqs. 1 to 3) with the configuration
``detection_cvpr_2019`` of nuscenes-devkit. The devkit gives an absent class an AP of 0 and errors of 1; FedCKA
(Verhoog, Ünal and Caesar, 2026, Section IV-D) averages over what is available instead, and so does this module.
:func:`evaluate` is plain numpy and equals the devkit on the same boxes; :func:`evaluate_with_devkit` runs the
devkit's own ``DetectionEval`` on the given samples.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedlib.data.detection_boxes import Detections, Truth, in_global, results
from fedlib.data.nuscenes.frame import CLASSES
from fedlib.errors import InputError

THRESHOLDS = (0.5, 1.0, 2.0, 4.0)  # metres between middles on the ground
TP_THRESHOLD = 2.0
ERRORS = ("trans_err", "scale_err", "orient_err", "vel_err", "attr_err")
_FLOOR = 0.1  # recalls and precisions up to here do not count
_RECALLS = np.linspace(0, 1, 101)
_UNDEFINED = {"traffic_cone": ("orient_err", "vel_err", "attr_err"), "barrier": ("vel_err", "attr_err")}


@dataclass(frozen=True)
class DetectionScores:
    """Scores over the available classes.

    Attributes:
        ap: average precision of each available class at each of ``THRESHOLDS``.
        errors: ``errors[class][error]`` for what is defined: not for classes without heading, velocity or
            attribute by definition, nor where no annotated box has one.
        boxes: number of annotated boxes of each available class.
    """

    ap: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, Mapping[str, float]]
    boxes: Mapping[str, int]

    @property
    def mean_ap(self) -> float:
        """Mean over classes of the mean over thresholds."""
        return float(np.mean([np.mean(values) for values in self.ap.values()]))

    @property
    def tp_errors(self) -> dict[str, float]:
        """Mean of each error over the classes for which it is defined; 1 if it is for none."""
        found = {name: [row[name] for row in self.errors.values() if name in row] for name in ERRORS}
        return {name: float(np.mean(values)) if values else 1.0 for name, values in found.items()}

    @property
    def nds(self) -> float:
        """NuScenes detection score: (5 mAP + sum of 1 - min(1, error)) / 10."""
        return (5 * self.mean_ap + sum(1 - min(1.0, error) for error in self.tp_errors.values())) / 10

    @property
    def cap(self) -> float:
        """Average precision of cars, mean over thresholds; NaN where there is none."""
        return float(np.mean(self.ap["car"])) if "car" in self.ap else float("nan")


def evaluate(truth: Truth, detections: Mapping[str, Detections]) -> DetectionScores:
    """Score predictions over the available classes.

    Args:
        truth: annotated boxes.
        detections: predictions for exactly the samples of ``truth``; empty ones are fine.

    Raises:
        InputError: the samples differ; the message gives both counts.
    """
    predicted = in_global(truth, detections)
    ap, errors = {}, {}
    for number, name in enumerate(CLASSES):
        if name not in truth.counts:
            continue
        pairs = _Class(truth, predicted, number)
        ap[name] = tuple(_average_precision(pairs, threshold) for threshold in THRESHOLDS)
        errors[name] = _true_positive_errors(pairs)
    return DetectionScores(ap, _defined(truth, errors), truth.counts)


def evaluate_with_devkit(truth: Truth, detections: Mapping[str, Detections]) -> DetectionScores:
    """Score predictions by the devkit's ``DetectionEval``, then average over the available classes.

    Raises:
        InputError: the samples differ; the message gives both counts.
    """
    metrics = devkit_metrics(truth, detections)
    names = list(truth.counts)
    ap = {name: tuple(metrics.get_label_ap(name, threshold) for threshold in THRESHOLDS) for name in names}
    errors = {name: {error: metrics.get_label_tp(name, error) for error in ERRORS} for name in names}
    return DetectionScores(ap, _defined(truth, errors), truth.counts)


def devkit_metrics(truth: Truth, detections: Mapping[str, Detections]) -> Any:
    """Return the devkit's own ``DetectionMetrics`` (over all ten classes) on the samples of ``truth``."""
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.common.data_classes import EvalBoxes
    from nuscenes.eval.common.loaders import add_center_dist, filter_eval_boxes, load_gt_of_sample_tokens
    from nuscenes.eval.detection.data_classes import DetectionBox, DetectionMetrics
    from nuscenes.eval.detection.evaluate import DetectionEval

    database = truth.driving.devkit
    config = config_factory("detection_cvpr_2019")
    content = results(truth, detections)["results"]
    if not any(content.values()):  # the devkit's filter cannot do with no box at all
        nothing = DetectionMetrics(config)
        for name in CLASSES:
            for threshold in THRESHOLDS:
                nothing.add_label_ap(name, threshold, 0.0)
            for error in ERRORS:
                nothing.add_label_tp(name, error, np.nan if error in _UNDEFINED.get(name, ()) else 1.0)
        return nothing
    evaluation = DetectionEval.__new__(DetectionEval)  # its constructor wants files and the name of a split
    evaluation.cfg, evaluation.verbose = config, False
    with contextlib.redirect_stderr(io.StringIO()):  # it shows progress even if it is told not to
        annotated = load_gt_of_sample_tokens(database, list(truth.tokens), DetectionBox, verbose=False)
    boxes = {"pred_boxes": EvalBoxes.deserialize(content, DetectionBox), "gt_boxes": annotated}
    for name, value in boxes.items():
        value = filter_eval_boxes(database, add_center_dist(database, value), truth.ranges, verbose=False)
        setattr(evaluation, name, value)
    return evaluation.evaluate()[0]


def weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the mean over domains, weighted (in the paper: by validation scenes).

    Raises:
        InputError: a domain has no weight, or the weights do not add up to more than 0.
    """
    if missing := [name for name in values if name not in weights]:
        raise InputError(f"domains {', '.join(missing)} have no weight; allowed: one for each value")
    total = sum(weights[name] for name in values)
    if total <= 0:
        raise InputError(f"weights add up to {total}; allowed: > 0")
    return float(sum(weights[name] * value for name, value in values.items()) / total)


class _Class:
    """Predictions and annotations of one class over all samples.

    Predictions are in the order in which they are matched: by falling score, among equal ones the later first (the
    devkit reverses an ascending sort).
    """

    def __init__(self, truth: Truth, predicted: Mapping[str, Detections], number: int) -> None:
        self.name = CLASSES[number]
        wanted = [np.flatnonzero(truth.labels[token].classes == number) for token in truth.tokens]
        labels = [truth.labels[token] for token in truth.tokens]
        self.boxes = np.concatenate([item.boxes[rows] for item, rows in zip(labels, wanted)])
        self.attributes = np.concatenate([item.attributes[rows] for item, rows in zip(labels, wanted)])
        self.starts = np.concatenate([[0], np.cumsum([len(rows) for rows in wanted])])
        found = [predicted[token] for token in truth.tokens]
        chosen = [np.flatnonzero(item.classes == number) for item in found]
        boxes = np.concatenate([item.boxes[rows] for item, rows in zip(found, chosen)])
        scores = np.concatenate([item.scores[rows] for item, rows in zip(found, chosen)])
        marks = [item.attributes for item in found if item.attributes is not None]
        attributes = np.concatenate([item[rows] for item, rows in zip(marks, chosen)])
        sample = np.repeat(np.arange(len(found)), [len(rows) for rows in chosen])
        order = np.lexsort((np.arange(len(scores)), scores))[::-1]
        self.predicted, self.scores, self.guessed = boxes[order], scores[order], attributes[order]
        self.sample = sample[order]
        self.nearest = np.full(len(scores), np.inf)  # metres to the nearest annotation, free or not
        for number, (first, last) in enumerate(pairwise(self.starts)):
            rows = np.flatnonzero(self.sample == number)
            if first < last and len(rows):
                apart = self.predicted[rows, None, :2] - self.boxes[first:last, :2]
                self.nearest[rows] = np.linalg.norm(apart, axis=2).min(1)

    def matches(self, threshold: float) -> np.ndarray:
        """Return the annotation (-1 for none) of each prediction, int64 (K,): the nearest that is still free."""
        free = np.ones(len(self.boxes), dtype=bool)
        match = np.full(len(self.scores), -1, dtype=np.int64)
        for row in np.flatnonzero(self.nearest < threshold):  # most predictions are near nothing
            first, last = self.starts[self.sample[row]], self.starts[self.sample[row] + 1]
            away = np.linalg.norm(self.boxes[first:last, :2] - self.predicted[row, :2], axis=1)
            away[~free[first:last]] = np.inf
            nearest = int(away.argmin())
            if away[nearest] < threshold:
                match[row] = first + nearest
                free[first + nearest] = False
        return match


def _average_precision(pairs: _Class, threshold: float) -> float:
    """Area under the precision-recall curve above recall and precision 0.1, scaled to 0..1."""
    hit = pairs.matches(threshold) >= 0
    if not hit.any():
        return 0.0
    right = np.cumsum(hit)
    precision = np.interp(_RECALLS, right / len(pairs.boxes), right / np.arange(1, len(hit) + 1), right=0)
    counted = precision[_RECALLS.searchsorted(_FLOOR + 1e-9) :]
    return float(np.maximum(counted - _FLOOR, 0).mean() / (1 - _FLOOR))


def _true_positive_errors(pairs: _Class) -> dict[str, float]:
    """Mean of each error's running mean over recalls from above 0.1 to the highest that is reached; else 1."""
    match = pairs.matches(TP_THRESHOLD)
    hit = match >= 0
    if not hit.any():
        return dict.fromkeys(ERRORS, 1.0)
    recall = np.cumsum(hit) / len(pairs.boxes)
    score = np.interp(_RECALLS, recall, pairs.scores, right=0)
    first, last = int(_RECALLS.searchsorted(_FLOOR + 1e-9)), int(np.flatnonzero(score)[-1])
    if last < first:
        return dict.fromkeys(ERRORS, 1.0)
    true, guess = pairs.boxes[match[hit]], pairs.predicted[hit]
    common = np.minimum(true[:, 3:6], guess[:, 3:6]).prod(axis=1)
    union = true[:, 3:6].prod(axis=1) + guess[:, 3:6].prod(axis=1) - common
    period = np.pi if pairs.name == "barrier" else 2 * np.pi
    turn = np.abs((true[:, 6] - guess[:, 6] + period / 2) % period - period / 2)
    marked = pairs.attributes[match[hit]]
    wrong = (marked != pairs.guessed[hit]).astype(np.float64)
    found = {
        "trans_err": np.linalg.norm(true[:, :2] - guess[:, :2], axis=1),
        "scale_err": 1 - common / union,
        "orient_err": turn,
        "vel_err": np.linalg.norm(true[:, 7:9] - guess[:, 7:9], axis=1),
        "attr_err": np.where(marked >= 0, wrong, np.nan),
    }
    at = pairs.scores[hit][::-1]
    return {
        name: float(np.interp(score[::-1], at, _running_mean(values)[::-1])[::-1][first : last + 1].mean())
        for name, values in found.items()
    }


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean of all values up to each one, without NaN; ones if all are NaN, 0 before the first that is not."""
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    number = np.cumsum(known)
    total: np.ndarray = np.nancumsum(values) / np.maximum(number, 1)
    return total


def _defined(truth: Truth, errors: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Leave out errors that a class does not have by definition or for want of annotations."""
    kept = {}
    for name, row in errors.items():
        number = CLASSES.index(name)
        rows = [(labels, labels.classes == number) for labels in truth.labels.values()]
        undefined = set(_UNDEFINED.get(name, ()))
        if not any(np.isfinite(labels.boxes[own, 7:9]).any() for labels, own in rows):
            undefined.add("vel_err")
        if not any((labels.attributes[own] >= 0).any() for labels, own in rows):
            undefined.add("attr_err")
        kept[name] = {error: value for error, value in row.items() if error not in undefined}
    return kept
