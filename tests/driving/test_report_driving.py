"""Pictures of driving scenes: boxes are drawn where they are."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection

from fedlib.data.detection_boxes import Detections
from fedlib.data.nuscenes import CAMERAS, DrivingSet, Frame
from fedlib.errors import InputError
from fedlib.report import driving as pictures

LENS = np.array([[100.0, 0, 50, 0], [0, 100, 40, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
TO_CAMERA = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])  # forward becomes depth
PROJECTION = LENS @ TO_CAMERA
CUBE = np.array([[10.0, 0, 0, 2, 2, 2, 0, 0, 0]])


@pytest.fixture
def frame(generated: DrivingSet) -> Frame:
    return generated.frame(generated.samples("E", "val")[0])


def test_edges_of_a_cube_straight_ahead_are_where_a_pinhole_puts_them() -> None:
    edges = pictures.projected_edges(CUBE, PROJECTION)
    assert edges.shape == (12, 2, 2)
    near, far = 100 / 9, 100 / 11  # half a side of two metres is one metre
    corners = {tuple(point) for point in edges.reshape(-1, 2).round(6).tolist()}
    assert corners == {
        (round(50 + a * size, 6), round(40 + b * size, 6))
        for size in (near, far)
        for a in (-1, 1)
        for b in (-1, 1)
    }


def test_what_is_behind_the_camera_is_not_drawn() -> None:
    assert pictures.projected_edges(CUBE - 20 * np.eye(9)[0], PROJECTION).shape == (0, 2, 2)
    around = np.array([[0.0, 3, 0, 2, 8, 2, 0, 0, 0]])  # beside the camera, half of it behind
    edges = pictures.projected_edges(around, PROJECTION)
    assert len(edges) == 8, "the rear face is left out"
    assert np.isfinite(edges).all()
    assert (edges[..., 0] < 50).all(), "it stays on the left"
    assert pictures.projected_edges(np.zeros((0, 9)), PROJECTION).shape == (0, 2, 2)


def test_the_line_to_the_front_points_along_the_heading() -> None:
    turned = CUBE.copy()
    turned[0, 6] = np.pi / 2
    line = pictures.outlines(turned)[0]
    assert line.shape == (7, 2)
    np.testing.assert_allclose(line[1] - line[0], [0, 1], atol=1e-12)
    np.testing.assert_allclose(line[-1], line[1], atol=1e-12, err_msg="the outline is closed")


def test_annotated_and_predicted_boxes_are_drawn_in_both_views(frame: Frame) -> None:
    seen = frame.labels.num_points > 0
    boxes = np.nan_to_num(frame.labels.boxes[seen])
    scores = np.linspace(0.2, 0.9, len(boxes))
    found = Detections(boxes, frame.labels.classes[seen], scores)
    name = pictures.title_of(frame)
    assert name.startswith("E: Singapore, night, rain (")
    figure = pictures.views({name: frame}, title="t", predicted={name: found}, least_score=0.5)
    camera, above = figure.axes
    lines = [item for item in above.collections if isinstance(item, LineCollection)]
    assert [len(item.get_segments()) for item in lines] == [len(boxes), int((scores >= 0.5).sum())]
    assert len({item.get_linestyle()[0][1] is None for item in lines}) == 2, "not told apart by colour alone"
    assert camera.get_xlim() == (-0.5, frame.images.shape[2] - 0.5), "boxes do not stretch the picture"
    plt.close(figure)


def test_boxes_from_above_lie_around_their_points(frame: Frame) -> None:
    best = int(np.argmax(frame.labels.num_points))
    x, y, *_ = frame.labels.boxes[best]
    figure, axis = plt.subplots()
    pictures.draw_from_above(axis, frame, 25.0)
    middles = [line[0] for item in axis.collections for line in item.get_segments()]
    assert any(np.allclose(middle, [-y, x]) for middle in middles)
    plt.close(figure)


@pytest.mark.parametrize("camera", [None, "CAM_BACK"])
def test_models_stand_side_by_side_with_their_own_boxes(frame: Frame, camera: str | None) -> None:
    found = Detections(np.repeat(CUBE, 3, axis=0), np.zeros(3), np.array([0.2, 0.6, 0.9]))
    predicted = {"one": {"E": found}, "two": {"E": Detections(CUBE[:0], np.zeros(0), np.zeros(0))}}
    cameras = None if camera is None else {"E": camera}
    figure = pictures.side_by_side({"E": frame}, predicted, title="t", cameras=cameras, least_score=0.5)
    assert [axis.get_title() for axis in figure.axes] == ["one", "two"]
    assert figure.axes[0].get_ylabel() == "E"
    for axis, boxes in zip(figure.axes, (2, 0), strict=True):
        lines = [item for item in axis.collections if isinstance(item, LineCollection)]
        if camera is None:
            assert len(lines[1].get_segments()) == boxes
        else:
            view = CAMERAS.index(camera)
            expected = pictures.projected_edges(np.repeat(CUBE, boxes, axis=0), frame.projections[view])
            assert len(lines[1].get_segments()) == len(expected)
    plt.close(figure)


def test_what_cannot_be_drawn_is_refused(frame: Frame) -> None:
    with pytest.raises(InputError, match="0 frames"):
        pictures.views({}, title="t")
    with pytest.raises(InputError, match="camera"):
        pictures.views({"a": frame}, title="t", camera="CAM")
    with pytest.raises(InputError, match="as the frames"):
        pictures.views({"a": frame}, title="t", predicted={})
    found = Detections(CUBE, np.zeros(1), np.ones(1))
    with pytest.raises(InputError, match="as the frames"):
        pictures.side_by_side({"a": frame}, {"one": {"b": found}}, title="t")
    with pytest.raises(InputError, match="1 frames, 0 models"):
        pictures.side_by_side({"a": frame}, {}, title="t")
    with pytest.raises(InputError, match="without pictures"):
        pictures.views({"a": replace(frame, images=np.zeros((0, 0, 0, 3), np.uint8))}, title="t")
    plt.close("all")
