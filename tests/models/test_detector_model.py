"""The whole detector: layers, repeatability, options, and that it learns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlib import seeds
from fedlib.data.nuscenes import Frame, Labels
from fedlib.federation.detection import Detection
from fedlib.federation.engine import one_thread
from fedlib.federation.messages import Broadcast
from fedlib.federation.model_state import FlatModel, model_state
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.fedcka.layers import partition
from fedlib.methods.fedcka.scores import Scoring, layer_scores
from fedlib.models.detector import Config, Prepared, build, collate, prepare

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


class Listed(list[Prepared]):
    """Frames as the data of a client."""

    def batch(self, indices: torch.Tensor) -> list[Prepared]:
        return [self[index] for index in indices.tolist()]


@pytest.mark.parametrize("boxes", [0, 2])
def test_a_client_without_a_box_or_a_point_trains_and_its_layers_are_scored(boxes: int) -> None:
    task = Detection(Config(**{**SMALL.__dict__, "denoising": 2}))
    method = FedCKA(optimizer="adamw", lr=1e-3, batch_size=2, warmup_rounds=0, tau=0.9, inputs=3)
    start = model_state(task.build_model(0))
    with one_thread():
        found = method.client_update(
            task, FlatModel(task.build_model(0)), 0, Listed(_frames(3, boxes)), Broadcast(1, start), {}, 0
        )
    assert found.num_samples == 3
    assert all(np.isfinite(value) for value in found.metrics.values())
    assert all(bool(tensor.isfinite().all()) for tensor in found.weights.values())
    scored = [name for name in found.metrics if name.startswith("cka/")]
    assert len(scored) > 50
    assert all(0 <= found.metrics[name] <= 1 for name in scored)


def test_frames_that_pass_together_give_the_scores_of_each() -> None:
    task, frames = Detection(SMALL), Listed(_frames(5))
    models = [FlatModel(task.build_model(seed)).module for seed in (0, 1)]
    layers = partition(models[0])
    with one_thread():
        alone, together = (
            layer_scores(
                *models, layers, list(torch.arange(5).split(1)),
                lambda model, rows: task.predict(model, frames.batch(rows)), Scoring(), 0, join=join,
            )
            for join in (None, torch.cat)
        )  # fmt: skip
    assert alone.keys() >= {"embed.bev.0", "embed.image.2", "img.4", "lidar.up", "decoder.1.norm3"}
    # Its rows vary by a millionth of their mean in an untrained network: float32 itself leaves two digits of it.
    blurred = "decoder.1.self_attention.out"
    assert together.pop(blurred) == pytest.approx(alone.pop(blurred), abs=5e-3)
    assert together == pytest.approx(alone, abs=1e-5)


def test_known_pixels_are_normalised_as_the_pretrained_backbone_has_them() -> None:
    (frame,) = _frames(1)
    pixels = np.empty_like(frame.images)
    pixels[:] = np.round(255 * np.array([0.485, 0.456, 0.406])).astype(np.uint8)[:, None, None]
    middle = collate([replace(frame, images=pixels)]).images
    assert float(middle.abs().max()) < 0.01, "ImageNet's mean colour is 0"
    brighter = collate([replace(frame, images=pixels + 51)]).images - middle
    assert brighter.amax((0, 1, 3, 4)).tolist() == pytest.approx(
        [0.2 / 0.229, 0.2 / 0.224, 0.2 / 0.225], rel=1e-4
    )


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
