"""Matching, losses and denoising against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedlib.models.detector import Config, Targets
from fedlib.models.detector.denoising import make, visible
from fedlib.models.detector.losses import box_error, focal, heat_map, matched
from fedlib.models.detector.matching import assign, costs


def _targets(middles: list[list[float]], classes: list[int], velocity: float = 0.0) -> Targets:
    codes = torch.zeros(1, max(1, len(middles)), 10, dtype=torch.float64)
    for row, middle in enumerate(middles):
        codes[0, row, :2] = torch.tensor(middle)
        codes[0, row, 8:] = velocity
    number = torch.tensor(classes or [0])[None]
    return Targets(codes, number, torch.full(number.shape, bool(classes)))


def test_focal_by_hand() -> None:
    found = focal(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([0, 2]))
    hit, miss = 0.25 * 0.25 * math.log(2), 0.75 * 0.25 * math.log(2)
    assert found.tolist() == pytest.approx([hit + miss, 2 * miss])


def test_cost_by_hand() -> None:
    codes = torch.zeros(1, 1, 1, 10, dtype=torch.float64)
    found = costs(
        torch.zeros(1, 1, 1, 10, dtype=torch.float64), codes, _targets([[1.0, 2.0]], [3], velocity=9.0)
    )
    class_cost = 0.25 * 0.25 * math.log(2) - 0.75 * 0.25 * math.log(2)
    assert float(found) == pytest.approx(2 * class_cost + 0.25 * (2 * 1 + 2 * 2))  # velocity does not decide


def test_nearest_queries_are_assigned() -> None:
    codes = torch.zeros(1, 1, 3, 10, dtype=torch.float64)
    codes[0, 0, :, 0] = torch.tensor([5.0, 0.0, 9.0])
    found = assign(torch.zeros(1, 1, 3, 10).double(), codes, _targets([[0.1, 0.0], [8.0, 0.0]], [0, 1]))
    assert [index.tolist() for index in found] == [[0, 0], [0, 0], [1, 2], [0, 1]]


def test_loss_by_hand_with_unknown_velocity() -> None:
    codes = torch.zeros(2, 1, 4, 10, dtype=torch.float64, requires_grad=True)
    logits = torch.zeros(2, 1, 4, 10, dtype=torch.float64)
    found = matched(logits, codes, _targets([[1.0, 0.0]], [0], velocity=math.nan))
    hit, miss = 0.25 * 0.25 * math.log(2), 0.75 * 0.25 * math.log(2)
    assert float(found["box"].detach()) == pytest.approx(2 * 0.25 * 2)  # two layers, weight 2 for x
    assert float(found["class"]) == pytest.approx(2 * 2 * (hit + 39 * miss) / 1.3)
    found["box"].backward()
    assert codes.grad is not None
    assert bool(codes.grad.isfinite().all())
    assert not codes.grad[..., 8:].any()


def test_loss_without_a_box_is_finite() -> None:
    codes = torch.zeros(1, 1, 4, 10, dtype=torch.float64, requires_grad=True)
    found = matched(
        torch.zeros(1, 1, 4, 10, dtype=torch.float64, requires_grad=True), codes, _targets([], [])
    )
    assert float(found["box"].detach()) == 0
    assert math.isfinite(float(found["class"].detach()))
    sum(found.values()).backward()  # type: ignore[union-attr]


def test_velocity_counts_a_fifth() -> None:
    wanted = torch.zeros(10, dtype=torch.float64)
    wanted[8] = 1
    assert float(box_error(torch.zeros(10, dtype=torch.float64), wanted)) == pytest.approx(0.2)


def test_who_sees_whom_in_denoising() -> None:
    found = visible(2, 2, 1, torch.tensor([[True, True], [True, False]]))[:, 0]
    assert found[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert not found[1, :3, 3].any()
    assert found[1, 3, 3]


def test_denoising_queries_are_near_their_boxes_and_large_noise_is_background() -> None:
    config = Config(queries=6, denoising=3)
    targets = _targets([[1.0, 2.0], [-3.0, 4.0]], [4, 7])
    noisy = make(targets, config, torch.Generator().manual_seed(0))
    again = make(targets, config, torch.Generator().manual_seed(0))
    assert noisy is not None
    assert again is not None
    assert torch.equal(noisy.anchors, again.anchors)
    assert noisy.anchors.shape == (1, 6, 3)
    assert noisy.allowed.shape == (1, 1, 12, 12)
    low, high = (torch.tensor(end).double() for end in config.box)
    r = (low + noisy.anchors * (high - low) - noisy.codes[..., [0, 1, 4]]) / 0.5
    assert bool((r.abs() <= 1 + 1e-6).all())
    own = torch.tensor([4, 7] * 3)
    assert torch.equal(noisy.classes[0], torch.where(r[0].norm(dim=-1) > 0.75, 10, own))
    assert float(noisy.normaliser) == pytest.approx(6 * math.pi / 6 * 0.75**3)


def test_no_denoising_without_boxes_or_room() -> None:
    generator = torch.Generator().manual_seed(0)
    assert make(_targets([], []), Config(denoising=3), generator) is None
    assert make(_targets([[0.0, 0.0], [1.0, 1.0]], [0, 0]), Config(queries=1, denoising=3), generator) is None


def test_heat_map_loss_is_small_only_for_the_right_map() -> None:
    config = Config()
    targets = _targets([[0.8, 0.8]], [2])
    right = torch.full((1, 10, 24, 24), -9.0, dtype=torch.float64)
    wrong = right.clone()
    right[0, 2, 12, 12] = 9
    wrong[0, 3, 12, 12] = 9
    assert heat_map(right, targets, config) < 0.1 < 5 < heat_map(wrong, targets, config)
