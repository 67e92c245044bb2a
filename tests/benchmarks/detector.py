"""Processor seconds of the compact detector: shares of a training step, and ten frames learnt by heart.

    python tests/benchmarks/detector.py [--steps 100] [--bf16]

The frames are the first of domains A and C of ``roadworld-drives`` (preset ``tiny``), without augmentation. The
score is nuScenes' mAP over the classes that occur, up to the detector's reach. Times are the least of several
repeats, of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from fedlib import data
from fedlib.data.detection_metrics import evaluate, evaluate_with_devkit
from fedlib.federation.detection import Detection, DetectionData, detection_data
from fedlib.federation.engine import one_thread
from fedlib.federation.model_state import FlatModel
from fedlib.models.detector import CMT, augmented, collate, inputs, losses, preset
from fedlib.models.detector.attention import prior

BATCH = 8


def seconds(function: Callable[[], object], repeats: int = 7) -> float:
    """Return the least processor seconds of a call."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def shares(task: Detection, frames: DetectionData) -> Table:
    """Time the parts of a training step, each with its backward pass."""
    config, chosen = task.config, list(frames.frames[:BATCH])
    model = FlatModel(task.build_model(0)).module.train()
    assert isinstance(model, CMT)
    batch = collate(chosen)
    inverse = torch.linalg.inv(batch.projections)
    anchors = torch.rand(BATCH, config.queries, 3)
    tokens = torch.rand(BATCH, config.grid**2 + 6 * 72, config.width, requires_grad=True)
    q = torch.rand(BATCH, config.queries, config.width, requires_grad=True)
    bias = prior(anchors, batch.projections, config)
    with torch.no_grad():
        said = model(batch)
    logits, codes = (t.clone().requires_grad_() for t in (said.logits, said.codes))
    rng = np.random.default_rng(0)

    def back(function: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def call() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.bf16):
                found = function()
            found.float().sum().backward()

        return call

    def exact(function: Callable[[], torch.Tensor]) -> Callable[[], None]:
        return lambda: function().sum().backward()

    parts: dict[str, Callable[[], object]] = {
        "augmentation": lambda: [
            augmented(frame, inputs.augmentation(rng, config), config) for frame in chosen
        ],
        "batch": lambda: collate(chosen),
        "LiDAR backbone": back(lambda: model.lidar(batch.grid)),
        "image backbone": back(lambda: model.img(batch.images.flatten(0, 1))),
        "encoding of tokens": exact(lambda: model.embed.tokens(inverse)),
        "encoding of queries": exact(lambda: model.embed.queries(anchors, batch.projections, inverse)),
        "attention prior": lambda: prior(anchors, batch.projections, config),
        "decoder": exact(
            lambda: model.decoder[1](
                model.decoder[0](q, q, tokens, tokens, bias, None), q, tokens, tokens, bias, None
            )
        ),
        "heads": exact(lambda: torch.cat([head(q, anchors)[1] for head in model.heads])),
        "matching and loss": exact(
            lambda: torch.stack(list(losses.matched(logits, codes, batch.targets).values()))
        ),
    }
    times = {name: seconds(call) for name, call in parts.items()}
    whole = seconds(lambda: task.loss(model, chosen).backward())
    table = Table("part", "ms a frame", "share", title=f"Training step of {BATCH} frames, bf16 {config.bf16}")
    for name, value in times.items():
        table.add_row(name, f"{1e3 * value / BATCH:.2f}", f"{value / sum(times.values()):.0%}")
    table.add_row("whole step", f"{1e3 * whole / BATCH:.2f}", "")
    return table


def by_heart(task: Detection, frames: DetectionData, steps: int, console: Console) -> None:
    """Train on all frames at once and print the score after every quarter."""
    model = task.build_model(0).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    spent = 0.0
    for step in range(steps):
        start = time.process_time()
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, (step + 1) / 20, (steps - step) / (steps / 2))
        optimizer.zero_grad()
        task.loss(model, list(frames.frames)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        spent += time.process_time() - start
        if (step + 1) % (steps // 4) == 0:
            model.eval()
            with torch.no_grad():
                found = dict(zip(frames.tokens, task.predict(model, list(frames.frames)), strict=True))
            model.train()
            ours, official = evaluate(frames.truth, found), evaluate_with_devkit(frames.truth, found)
            console.print(
                f"{step + 1} steps, {spent:.1f} s: mAP {ours.mean_ap:.4f} (devkit {official.mean_ap:.4f}), "
                f"NDS {ours.nds:.3f}, car AP {ours.cap:.3f}"
            )


def main(steps: int = 100, bf16: bool = False) -> None:
    """Print both."""
    console = Console()
    driving = data.driving("roadworld-drives", preset="tiny")
    task = Detection(replace(preset("tiny"), bf16=bf16), augment=False)
    tokens = [*driving.samples("A", "train"), *driving.samples("C", "train")][:10]
    with one_thread():
        frames = detection_data(driving, tokens, task.config)
        console.print(shares(Detection(task.config), frames))
        by_heart(task, frames, steps, console)


if __name__ == "__main__":
    typer.run(main)
