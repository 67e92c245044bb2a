"""The whole detector: layers, repeatability, options, and that it learns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from fedlib import seeds
from fedlib.data.nuscenes import Frame, Labels
from fedlib.federation.detection import Detection
from fedlib.methods.fedcka.layers import partition
from fedlib.models.detector import Config, Prepared, build, prepare

SMALL = Config(cells=48, reach=9.6, queries=12, image_size=(16, 32), width=16, lidar_width=16, ffn=32)


def _frames(number: int, boxes: int = 2) -> list[Prepared]:
    """Frames with boxes full of points, of a class that their height tells."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(number):
        rows = np.zeros((boxes, 9))
        rows[:, :2], rows[:, 3:6], rows[:, 7:] = rng.uniform(-8, 8, (boxes, 2)), 1.5, np.nan
        points = np.zeros((boxes * 40, 5), np.float32)
        points[:, :3] = np.repeat(rows[:, :3], 40, 0) + rng.uniform(-0.7, 0.7, (boxes * 40, 3))
        ones = np.ones(boxes, dtype=np.int64)
        labels = Labels(rows, ones * 3, ones, ones, ones, ("",) * boxes)
        eye = np.eye(4)
        views = np.array([[[16.0, -16, 0, 0], [8, 0, -16, 0], [1, 0, 0, 0], [0, 0, 0, 1]]])
        pictures = rng.integers(0, 255, (1, 16, 32, 3)).astype(np.uint8)
        frame = Frame("", "", "A", 0, eye, eye, points, pictures, views, eye[None], eye[None, :3, :3], labels)
        found.append(prepare(frame, SMALL))
    return found


def _step(task: Detection, frames: list[Prepared]) -> tuple[float, torch.Tensor]:
    model = task.build_model(0).train()
    with seeds.torch_global(5, "test"):
        loss = task.loss(model, frames)
    loss.backward()
    return float(loss.detach()), torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


def test_every_parameter_is_in_exactly_one_layer() -> None:
    model = build(SMALL, 0)
    counts = Counter(name for layer in partition(model) for name in layer.tensors)
    assert set(counts) == set(model.state_dict())
    assert set(counts.values()) == {1}
    parts = {name.split(".")[0] for name in counts}
    assert parts == {"img", "lidar", "embed", "decoder", "heads"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"denoising": 2, "modality_mask": 0.25},
        {"refine": True, "heat_map": True, "prior": ()},
    ],
)
def test_one_seed_gives_the_same_bits_under_every_option(options: dict[str, object]) -> None:
    task = Detection(Config(**{**SMALL.__dict__, **options}))  # type: ignore[arg-type]
    first, gradient = _step(task, _frames(2))
    again, same = _step(task, _frames(2))
    assert first == again
    assert torch.equal(gradient, same)
    assert bool(gradient.isfinite().all())


def test_a_batch_without_points_and_boxes_trains_and_predicts() -> None:
    task = Detection(Config(**{**SMALL.__dict__, "denoising": 2}))
    loss, gradient = _step(task, _frames(2, boxes=0))
    assert np.isfinite(loss)
    assert bool(gradient.isfinite().all())
    with torch.no_grad():
        found = task.predict(build(SMALL, 0).eval(), _frames(2, boxes=0))
    assert len(found) == 2
    assert len(found[0]) == 120


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16 arithmetic"
)
def test_bfloat16_backbones_give_nearly_the_same_loss() -> None:
    one = _step(Detection(SMALL, augment=False), _frames(2))[0]
    two = _step(Detection(Config(**{**SMALL.__dict__, "bf16": True}), augment=False), _frames(2))[0]
    assert one != two
    assert one == pytest.approx(two, rel=0.02)


def test_denormal_numbers_stay_as_they_were_for_all_other_code() -> None:
    task = Detection(SMALL)
    _step(task, _frames(2))
    with torch.no_grad():
        task.predict(build(SMALL, 0).eval(), _frames(1))
    assert float(torch.tensor([1e-39]) * torch.tensor([1.0])) > 0


def test_a_few_frames_are_learnt() -> None:
    task, frames = Detection(SMALL, augment=False), _frames(4)
    model = task.build_model(0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = task.loss(model, frames)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 5
