"""The profile ``paper`` of the FedCKA pages: the detector in the authors' size, on a processor instead of a
GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedlib.data.nuscenes import DrivingSet
from fedlib.experiments import settings
from fedlib.experiments.fedcka_detection import Scenes, evaluated
from fedlib.federation.detection import Detection, DetectionData, detection_data
from fedlib.federation.engine import one_thread
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.fedcka.layers import partition
from fedlib.methods.fedcka.scores import Scoring
from fedlib.methods.federated.fedavg import FedAvg


def paper_scenes(generated: DrivingSet) -> Scenes:
    planned = settings.load("fedcka", "paper").for_scenes()
    mixed = planned.bf16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return Scenes(planned.model_copy(update={"device": "cpu", "bf16": mixed}), generated)


def one_step(
    scenes: Scenes, method: FedAvg, **sizes: Any
) -> tuple[Detection, DetectionData, FlatModel, State, Update]:
    """Train one client for one step on one frame; return what was used, the model as it was, and the update."""
    # A processor has no fused attention with dropout; the other one would hold gigabytes more.
    task = Detection(replace(scenes.task().config, dropout=0.0, **sizes))
    frames = detection_data(scenes.driving, scenes.driving.samples("A", "val")[:1], task.config)
    model = FlatModel(task.build_model(0))
    start = model_state(model.module)
    update = method.client_update(task, model, 0, frames, Broadcast(1, start), {}, 0)
    assert update.metrics["steps"] == 1
    assert np.isfinite(update.metrics["train_loss"])
    return task, frames, model, start, update


@pytest.mark.slow
def test_the_full_size_takes_a_training_step_and_is_evaluated(generated: DrivingSet) -> None:
    scenes = paper_scenes(generated)
    with one_thread():
        task, frames, model, start, update = one_step(scenes, scenes.method("fedcka", {}))
        assert (task.config.queries, task.config.image_size, task.config.layers) == (900, (320, 800), 2)
        moved = [name for name, tensor in update.weights.items() if not torch.equal(tensor, start[name])]
        parts = {name.split(".")[0] for name in moved}
        assert parts == {"img", "lidar", "embed", "decoder", "heads"}, "every part learns"
        scores = evaluated(task, model, frames)
    assert 0 <= scores["map"] <= scores["nds"] <= 1


@pytest.mark.slow
def test_all_layers_of_the_full_size_are_scored_and_masked(generated: DrivingSet) -> None:
    """With smaller pictures and grid, which have no parameters: the activations of two models would take 8 GB."""
    scenes = paper_scenes(generated)
    options = {"warmup_rounds": 0, "inputs": 1, "scoring": Scoring(max_rows=1024)}
    method = scenes.method("fedcka", options)
    assert isinstance(method, FedCKA)
    with one_thread():
        _, _, model, start, update = one_step(scenes, method, cells=264, image_size=(160, 416), queries=300)
    assert sum(p.numel() for p in model.module.parameters()) > 27e6
    layers = {layer.name: layer for layer in partition(model.module)}
    found = {layer: update.metrics[f"cka/{layer}"] for layer in layers if f"cka/{layer}" in update.metrics}
    assert set(layers) - set(found) == {"embed"}, "the anchors have no activation"
    assert all(0 <= score <= 1 for score in found.values())
    kept = {
        tensor for layer, score in found.items() if score < method.tau for tensor in layers[layer].tensors
    }
    assert kept == set(update.masks) == set(start) - set(update.weights)
    assert 0 < update.metrics["personal_share"] < 1
