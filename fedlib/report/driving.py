"""Pictures of driving scenes: what a camera sees and the scene from above, with annotated and predicted boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlib.data.detection_boxes import Detections
from fedlib.data.nuscenes import CAMERAS, DOMAINS, Frame, corners
from fedlib.errors import InputError, choose
from fedlib.report.figures import PALETTE, WIDTH, style

# Pairs of corners of ``fedlib.data.nuscenes.corners``: the front face, the rear face, what joins them.
_EDGES = np.array(
    [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)]
)
_NEAR = 0.2  # metres in front of the camera at which edges are cut off
_AROUND = [0, 4, 5, 1]  # upper corners, from the left of the front by the rear to its right
_ANNOTATED, _PREDICTED = "annotated box", "predicted box"


def projected_edges(boxes: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Return the edges of boxes in a picture as segments (K, 2, 2): column and row of both ends, in pixels.

    What lies behind the camera is cut off; an edge that is wholly behind it is left out. Segments can end
    outside the picture.

    Args:
        boxes: (M, >= 7), see ``fedlib.data.nuscenes.BOX``.
        projection: (4, 4), see ``fedlib.data.nuscenes.Frame``.
    """
    points = corners(boxes) @ projection[:3, :3].T + projection[:3, 3]  # (M, 8, 3): u d, v d, d
    ends = points[:, _EDGES].reshape(-1, 2, 3)
    depth = ends[..., 2]
    seen = (depth > _NEAR).any(axis=1)
    ends, depth = ends[seen], depth[seen]
    # an end behind the camera moves along its edge to the near plane
    along = (_NEAR - depth) / np.where(depth[:, ::-1] == depth, np.inf, depth[:, ::-1] - depth)
    moved = ends + along[..., None] * (ends[:, ::-1] - ends)
    ends = np.where((depth < _NEAR)[..., None], moved, ends)
    segments: np.ndarray = ends[..., :2] / ends[..., 2:]
    return segments


def outlines(boxes: np.ndarray) -> np.ndarray:
    """Return boxes from above as lines (M, 7, 2), x and y in metres: from the middle to the front, and around.

    Args:
        boxes: as ``projected_edges``.
    """
    top = corners(boxes)[..., :2]
    middle, front = top.mean(axis=1), top[:, [0, 1]].mean(axis=1)
    return np.concatenate([middle[:, None], front[:, None], top[:, _AROUND], front[:, None]], axis=1)


def views(
    frames: Mapping[str, Frame],
    *,
    title: str,
    predicted: Mapping[str, Detections] | None = None,
    camera: str = "CAM_FRONT",
    reach: float = 25.0,
    least_score: float = 0.3,
) -> Figure:
    """Draw frames one below the other: a camera's picture, and points and boxes from above with the car in front.

    Args:
        frames: by the heading of their row.
        title: what the figure says.
        predicted: by the same headings; None draws annotated boxes only.
        camera: one of ``CAMERAS``.
        reach: metres around the car that the view from above shows.
        least_score: predicted boxes below are left out.

    Raises:
        InputError: no frame, an unknown camera, frames without pictures, or predictions for other headings.
    """
    view = CAMERAS.index(choose("camera", camera, CAMERAS))
    if not frames:
        raise InputError("0 frames are given; allowed: at least 1")
    if predicted is not None and set(predicted) != set(frames):
        raise InputError(f"predictions are for {sorted(predicted)}; allowed: {sorted(frames)}, as the frames")
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            len(frames), 2, figsize=(WIDTH, 2.35 * len(frames) + 0.8), squeeze=False, layout="constrained",
            gridspec_kw={"width_ratios": [1.9, 1]},
        )  # fmt: skip
        for (name, frame), (left, right) in zip(frames.items(), axes, strict=True):
            found = None if predicted is None else _above(predicted[name], least_score)
            draw_camera(left, frame, view, found)
            draw_from_above(right, frame, reach, found)
            left.set_title(name, loc="left")
        axes[-1][1].set_xlabel("metres to the right")
        figure.legend(
            handles=_legend(predicted is not None), loc="outside lower center", ncols=3, frameon=False
        )
        figure.suptitle(title, fontsize=12)
    return figure


def side_by_side(
    frames: Mapping[str, Frame],
    predicted: Mapping[str, Mapping[str, Detections]],
    *,
    title: str,
    cameras: Mapping[str, str] | None = None,
    reach: float = 25.0,
    least_score: float = 0.3,
) -> Figure:
    """Draw each frame several times in a row, with the predictions of one model each: from above or by a camera.

    Args:
        frames: by the heading of their row.
        predicted: by the heading of their column, then by that of the row.
        title: what the figure says.
        cameras: by the heading of the row, the camera whose picture is drawn; None draws the view from above.
        reach: metres around the car that the view from above shows.
        least_score: predicted boxes below are left out.

    Raises:
        InputError: no frame or no prediction, an unknown camera, frames without pictures, or predictions or
            cameras for other headings.
    """
    if not frames or not predicted:
        raise InputError(f"{len(frames)} frames, {len(predicted)} models; allowed: at least 1 of each")
    for given in (*predicted.values(), *([] if cameras is None else [cameras])):
        if set(given) != set(frames):
            raise InputError(f"headings are {sorted(given)}; allowed: {sorted(frames)}, as the frames")
    shape = 0.52 if cameras is not None else 0.88  # height over width of a panel
    width = WIDTH / len(predicted)
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            len(frames), len(predicted), figsize=(WIDTH, (shape * width + 0.1) * len(frames) + 1.1),
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for place, ((row, frame), line) in enumerate(zip(frames.items(), axes, strict=True)):
            for (column, models), axis in zip(predicted.items(), line, strict=True):
                boxes = _above(models[row], least_score)
                if cameras is None:
                    draw_from_above(axis, frame, reach, boxes)
                    axis.label_outer()
                else:
                    draw_camera(axis, frame, CAMERAS.index(choose("camera", cameras[row], CAMERAS)), boxes)
                axis.set_title(column if place == 0 else "")
                axis.set_ylabel(row if axis is line[0] else "")
        if cameras is None:
            for axis in axes[-1]:
                axis.set_xlabel("metres to the right")
        figure.legend(
            handles=_legend(True, cameras is None), loc="outside lower center", ncols=4, frameon=False
        )
        figure.suptitle(title, fontsize=12)
    return figure


def draw_camera(axis: Axes, frame: Frame, view: int, predicted: np.ndarray | None = None) -> None:
    """Draw the picture of one camera with the boxes in it.

    Args:
        axis: where to.
        frame: what to draw; annotated boxes without a LiDAR or radar point are left out.
        view: number of the camera.
        predicted: boxes (K, 9), if there are any to draw.

    Raises:
        InputError: the frame has no pictures.
    """
    if not len(frame.images):
        raise InputError(f"frame {frame.token} was read without pictures; read it with images=True")
    picture = frame.images[view]
    axis.imshow(picture, interpolation="bilinear")
    for boxes, line in _layers(frame, predicted):
        axis.add_collection(LineCollection(list(projected_edges(boxes, frame.projections[view])), **line))
    axis.set(xlim=(-0.5, picture.shape[1] - 0.5), ylim=(picture.shape[0] - 0.5, -0.5), xticks=[], yticks=[])


def draw_from_above(axis: Axes, frame: Frame, reach: float, predicted: np.ndarray | None = None) -> None:
    """Draw points and boxes from above; the car is in the middle and drives upwards.

    Args:
        axis: where to.
        frame: see ``draw_camera``.
        reach: metres around the car.
        predicted: see ``draw_camera``.
    """
    newest = frame.points[frame.points[:, 4] == frame.points[:, 4].min()]
    axis.plot(-newest[:, 1], newest[:, 0], ".", color="#777777", markersize=1.2, rasterized=True)
    for boxes, line in _layers(frame, predicted):
        lines = outlines(boxes)[..., ::-1] * [-1, 1]  # y to the left becomes x to the right
        axis.add_collection(LineCollection(list(lines), **line))
    axis.plot(0, 0, "^", color="black", markersize=6)
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", ylabel="metres ahead")


def title_of(frame: Frame) -> str:
    """Return the heading of a frame's row: its domain in words, and the number of boxes and of points.

    The points are those of the newest sweep.
    """
    newest = int((frame.points[:, 4] == frame.points[:, 4].min()).sum())
    boxes = int((frame.labels.num_points > 0).sum())
    return f"{frame.domain}: {DOMAINS[frame.domain].title} ({boxes} boxes, {newest:,} points)"


def _above(detections: Detections, least_score: float) -> np.ndarray:
    boxes: np.ndarray = detections.boxes[detections.scores >= least_score]
    return boxes


def _layers(frame: Frame, predicted: np.ndarray | None) -> list[tuple[np.ndarray, dict[str, Any]]]:
    annotated = frame.labels.boxes[frame.labels.num_points > 0]
    first = [(annotated, _line(_ANNOTATED))]
    return first if predicted is None else [*first, (predicted, _line(_PREDICTED))]


def _line(kind: str) -> dict[str, Any]:
    colours = sns.color_palette(PALETTE)
    if kind == _PREDICTED:
        return {"colors": [colours[9]], "linewidths": 1.3, "linestyles": "dashed"}
    return {"colors": [colours[1]], "linewidths": 1.1, "linestyles": "solid"}


def _legend(both: bool, above: bool = True) -> list[Line2D]:
    kinds = [_ANNOTATED, _PREDICTED] if both else [_ANNOTATED]
    shown = []
    for kind in kinds:
        line = _line(kind)
        shown.append(Line2D([], [], color=line["colors"][0], linestyle=line["linestyles"], label=kind))
    if not above:
        return shown
    car = Line2D([], [], color="black", marker="^", linestyle="none", label="recording car")
    point = Line2D([], [], color="#777777", marker=".", linestyle="none", label="LiDAR point")
    return [*shown, point, car]
