"""Coordinates of the detector: box code, projections, encodings, prior, grid, augmentation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlib.errors import InputError
from fedlib.models.detector import Config, Prepared, augmented, lidar_grid, preset
from fedlib.models.detector.attention import prior
from fedlib.models.detector.boxes import decode, encode, to_boxes
from fedlib.models.detector.encodings import (
    bev_centres,
    normalise,
    pixel_centres,
    project,
    ray_points,
    sine_cosine,
)
from fedlib.models.detector.inputs import augmentation

CONFIG = Config()
CAMERA = torch.tensor(  # looks along +x from the origin: focal length 50, middle (48, 24)
    [[48.0, -50.0, 0.0, 0.0], [24.0, 0.0, -50.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    dtype=torch.float64,
)[None, None]


def test_box_code_round_trip_and_order() -> None:
    box = torch.tensor([[1.0, -2.0, 0.5, 2.0, 4.0, 1.5, 2.5, 3.0, -1.0]], dtype=torch.float64)
    code = encode(box)
    wanted = [1, -2, math.log(2), math.log(4), 0.5, math.log(1.5), math.sin(2.5), math.cos(2.5), 3, -1]
    assert torch.allclose(code[0], torch.tensor(wanted, dtype=torch.float64))
    assert torch.allclose(to_boxes(code), box)


def test_decoding_keeps_sizes_finite_and_drops_far_boxes() -> None:
    codes = torch.zeros(2, 10)
    codes[0, 2] = 100.0
    codes[1, 0] = 62.0
    boxes, classes, scores = decode(torch.tensor([[3.0, -1.0], [5.0, 5.0]]), codes)
    assert boxes.shape == (2, 9)
    assert classes.tolist() == [0, 1]
    assert boxes[0, 3] == pytest.approx(math.exp(4))
    assert bool((scores[:-1] >= scores[1:]).all())


def test_projection_by_hand() -> None:
    pixels, depth = project(torch.tensor([[[10.0, 2.0, 1.0], [-5.0, 0.0, 0.0]]]).double(), CAMERA)
    assert pixels[0, 0, 0].tolist() == pytest.approx([48 - 50 * 2 / 10, 24 - 50 * 1 / 10])
    assert depth[0, 0].tolist() == [10, -5]


def test_points_on_a_ray_project_back_to_its_pixel() -> None:
    pixel = torch.tensor([[[[30.0, 10.0]]]], dtype=torch.float64)
    points = ray_points(pixel, torch.linalg.inv(CAMERA), CONFIG).view(1, CONFIG.depth_bins, 3)
    low, high = (torch.tensor(end) for end in CONFIG.box)
    back, depth = project(low + points * (high - low), CAMERA)
    assert torch.allclose(back[0, 0], pixel[0, 0].expand_as(back[0, 0]))
    wanted = 1 + torch.arange(12) * (19.2 - 1) / 12
    assert torch.allclose(depth[0, 0], wanted.double())


def test_sine_cosine_by_hand() -> None:
    found = sine_cosine(torch.tensor([0.25, 0.5], dtype=torch.float64), 4)
    rates = [2 * math.pi, 2 * math.pi / 100]
    wanted = [f(r * place) for place in (0.25, 0.5) for r in rates for f in (math.sin, math.cos)]
    assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64))


def test_token_centres() -> None:
    bev, image = bev_centres(CONFIG, torch.zeros(1)), pixel_centres(CONFIG, torch.zeros(1))
    assert bev.shape == (576, 2)
    assert bev[1].tolist() == pytest.approx([1.5 / 24, 0.5 / 24])
    assert image.shape == (72, 2)
    assert image[1].tolist() == [12, 4]


def test_prior_is_clamped_carries_no_gradient_and_is_none_where_infinite() -> None:
    anchors = normalise(torch.tensor([[[0.8, 0.8, 0.0]]]), CONFIG).requires_grad_()
    bias = prior(anchors, CAMERA.float(), CONFIG)
    assert bias is not None
    assert not bias.requires_grad
    assert bias.shape == (1, 4, 1, 576 + 72)
    assert bias.min() == -10
    assert torch.equal(bias[0, 3], torch.zeros(1, 648))
    assert bias[0, 0, 0, 12 * 24 + 12] == pytest.approx(0, abs=1e-5)  # the token whose middle it is
    assert bias[0, 0, 0, 12 * 24 + 13] == pytest.approx(-(1.6**2) / (2 * 1.0**2), rel=1e-4)


def test_grid_counts_slices_sweeps_and_survives_no_points() -> None:
    points = np.array(
        [
            [0.1, 0.3, 0.0, 51.0, 0.0],
            [0.1, 0.3, 0.1, 51.0, 0.0],
            [0.1, 0.3, 9.0, 1, 0],
            [0.1, 0.3, 2.0, 0, 0.5],
        ]
    )
    grid = lidar_grid(points, CONFIG)
    assert grid[0, 48, 48] == pytest.approx(math.log(3))
    assert grid[7, 48, 48] == pytest.approx(math.log(2))
    assert grid[:9].sum() == pytest.approx(math.log(6), abs=1e-5)  # what is above the space does not count
    assert grid[9:, 48, 48].tolist() == pytest.approx(
        [0.1 / 0.4 - 0.5, 0.3 / 0.4 - 0.5, 0.2, 0.0125], abs=1e-5
    )
    assert not lidar_grid(np.zeros((0, 5)), CONFIG).any()


def test_augmentation_moves_points_boxes_and_projections_together() -> None:
    points = np.array([[5.0, 1.0, 0.5, 0, 0]], dtype=np.float32)
    boxes = np.array([[5.0, 1.0, 0.5, 2, 4, 1.5, 0.3, 1.0, 0.0]])
    pictures = np.zeros((1, 3, 48, 96), np.uint8)
    frame = Prepared(points, pictures, CAMERA[0].numpy(), boxes, np.array([0]), CONFIG)
    a = augmentation(np.random.default_rng(3), replace(CONFIG, rotation=0.4, shift=0.5, flips=True))
    moved = augmented(frame, a, CONFIG)
    assert np.allclose(moved.points[0, :3], moved.boxes[0, :3], atol=1e-5)
    places = [torch.tensor(f.boxes[None, :, :3]) for f in (frame, moved)]
    views = [torch.tensor(f.projections[None]) for f in (frame, moved)]
    assert torch.allclose(project(places[0], views[0])[0], project(places[1], views[1])[0])
    scale = np.linalg.norm(a[:3, 2])
    heading = a[:2, :2] @ [np.cos(0.3), np.sin(0.3)] / scale
    assert np.allclose([np.cos(moved.boxes[0, 6]), np.sin(moved.boxes[0, 6])], heading)
    assert np.allclose(moved.boxes[0, 3:6], scale * boxes[0, 3:6])


def test_augmentation_draws_what_the_configuration_allows() -> None:
    drawn = np.stack([augmentation(np.random.default_rng(seed), CONFIG) for seed in range(200)])
    sizes = np.linalg.norm(drawn[:, :3, 2], axis=1)
    angles = np.arctan2(drawn[:, 1, 0], drawn[:, 0, 0])
    assert (np.linalg.det(drawn[:, :2, :2]) > 0).all()  # never mirrored
    assert abs(angles).max() == pytest.approx(CONFIG.rotation, rel=0.1)
    assert abs(sizes - 1).max() == pytest.approx(CONFIG.scale, rel=0.1)
    assert not drawn[:, :3, 3].any()
    mirrored = [augmentation(np.random.default_rng(seed), preset("paper")) for seed in range(40)]
    assert {float(np.sign(np.linalg.det(a[:2, :2]))) for a in mirrored} == {-1.0, 1.0}
    assert np.std([a[:3, 3] for a in mirrored]) == pytest.approx(0.5, rel=0.2)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InputError, match="heads is 5"):
        Config(heads=5)
    with pytest.raises(InputError, match="tiny"):
        preset("huge")
