"""Processor seconds of the compact detector: shares of a training step, and ten frames learnt by heart.

    python tests/benchmarks/detector.py [--steps 100] [--bf16]

The frames are the first of domains A and C of ``roadworld-drives`` (preset ``tiny``), without augmentation. The
score is nuScenes' mAP over the classes that occur, up to the detector's reach. Times are the least of several
repeats, of one thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedlib import data
from fedlib.data.detection_metrics import evaluate, evaluate_with_devkit
from fedlib.experiments.detector_seconds import WHOLE, seconds_by_part
from fedlib.federation.detection import Detection, DetectionData, detection_data
from fedlib.federation.engine import one_thread
from fedlib.models.detector import preset


def shares(task: Detection, frames: DetectionData) -> Table:
    """Time the parts of a training step, each with its backward pass."""
    times = seconds_by_part(task, frames)
    whole = times.pop(WHOLE)
    table = Table("part", "ms a frame", "share", title=f"Training step, bf16 {task.config.bf16}")
    for name, value in times.items():
        table.add_row(name, f"{1e3 * value:.2f}", f"{value / sum(times.values()):.0%}")
    table.add_row(WHOLE, f"{1e3 * whole:.2f}", "")
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
