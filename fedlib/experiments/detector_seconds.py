"""Where the seconds of a training step of the detector go, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib import seeds
from fedlib.experiments.fedcka_detection import Scenes
from fedlib.experiments.settings import FedCKASettings
from fedlib.federation.detection import Detection, DetectionData
from fedlib.models.detector import CMT, augmented, collate, inputs, losses
from fedlib.models.detector.attention import prior
from fedlib.runs import Run, Store, Workspace

WHOLE = "whole step"
BATCH = 8  # frames


def step_parts(settings: FedCKASettings) -> Run:
    """Time the parts of a training step on frames of domain A; a stored run keeps what it found.

    Columns: seed (0), part, metric (``seconds`` a frame), value; see :func:`seconds_by_part`.

    Args:
        settings: of the paper's experiments.

    Raises:
        InputError: see ``fedcka_detection.Scenes.of``.
    """
    scenes = Scenes.of(settings)

    def compute(workspace: Workspace) -> None:
        with seeds.torch_global(0, "step parts"):
            found = seconds_by_part(scenes.task(), scenes.frames("A", "train"))
        rows = [(0, part, "seconds", value) for part, value in found.items()]
        workspace.finish(pd.DataFrame(rows, columns=["seed", "part", "metric", "value"]))

    config = {"batch": BATCH, "device": scenes.settings.device}
    return Store().compute(scenes.spec("fedcka.step", config, __name__), compute)


def seconds_by_part(task: Detection, data: DetectionData, repeats: int = 7) -> dict[str, float]:
    """Return the least seconds a frame of each part of a step, with its backward pass, and of the ``whole step``.

    Numbers are drawn from torch's stream, which the caller seeds. On a processor these are processor seconds. The
    optimizer and what connects the parts are in none of them; the whole step also has the denoising queries.

    Args:
        task: what is trained.
        data: its first frames are taken, at most ``BATCH``.
        repeats: of each part.
    """
    config, chosen = task.config, list(data.batch(torch.arange(min(BATCH, len(data)))))
    count = len(chosen)
    model = task.build_model(0).to(task.device).train()
    assert isinstance(model, CMT)
    batch = collate(chosen, task.device)
    inverse = torch.linalg.inv(batch.projections)
    anchors = torch.rand(count, config.queries, 3, device=task.device)
    with torch.no_grad():
        said, places = model(batch), model.embed.tokens(inverse)
    q = torch.rand(count, config.queries, config.width, device=task.device, requires_grad=True)
    tokens = torch.rand(places.shape, device=task.device, requires_grad=True)
    bias = prior(anchors, batch.projections, config)
    logits, codes = (t.clone().requires_grad_() for t in (said.logits, said.codes))
    rng = np.random.default_rng(0)

    def back(function: Callable[[], Tensor]) -> Callable[[], None]:
        def call() -> None:
            with torch.autocast(batch.images.device.type, dtype=torch.bfloat16, enabled=config.bf16):
                found = function()
            found.float().sum().backward()

        return call

    def exact(function: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: function().sum().backward()

    parts: dict[str, Callable[[], object]] = {
        "augmentation": lambda: [
            augmented(frame, inputs.augmentation(rng, config), config) for frame in chosen
        ],
        "batch": lambda: collate(chosen, task.device),
        "LiDAR backbone": back(lambda: model.lidar(batch.grid)),
        "image backbone": back(lambda: model.img(batch.images.flatten(0, 1))),
        "encoding of tokens": exact(lambda: model.embed.tokens(inverse)),
        "encoding of queries": exact(lambda: model.embed.queries(anchors, batch.projections, inverse)),
        "attention prior": lambda: prior(anchors, batch.projections, config),
        "decoder": exact(lambda: _decoded(model, q, tokens, bias)),
        "heads": exact(lambda: torch.cat([head(q, anchors)[1] for head in model.heads])),
        "matching and loss": exact(
            lambda: torch.stack(list(losses.matched(logits, codes, batch.targets).values()))
        ),
        WHOLE: lambda: task.loss(model, chosen).backward(),
    }
    return {name: _least(call, repeats, task.device) / count for name, call in parts.items()}


def _decoded(model: CMT, q: Tensor, tokens: Tensor, bias: Tensor | None) -> Tensor:
    found = q
    for layer in model.decoder:
        found = layer(found, q, tokens, tokens, bias, None)
    return found


def _least(function: Callable[[], object], repeats: int, device: str) -> float:
    found = []
    for _ in range(repeats):
        start = _now(device)
        function()
        found.append(_now(device) - start)
    return min(found)


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()
