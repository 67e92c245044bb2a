"""Processor seconds of scoring the compact detector's layers, and how far float32 is from float64.

    python tests/benchmarks/cka.py [--inputs 20]

The inputs are frames of ``roadworld-drives`` (preset ``tiny``). The two models are one start and the same after
some steps of training. Times are the least of several repeats, of one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import typer
from detector import seconds
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedlib import data
from fedlib.data.nuscenes import DOMAINS
from fedlib.features.cka import linear_cka, stacked_cka
from fedlib.federation.detection import Detection, DetectionData, detection_data
from fedlib.federation.engine import one_thread
from fedlib.federation.model_state import FlatModel
from fedlib.methods.fedcka.activations import called_modules
from fedlib.methods.fedcka.layers import partition
from fedlib.methods.fedcka.representations import representations
from fedlib.methods.fedcka.scores import Scoring, layer_scores
from fedlib.models.detector import preset


def trained(task: Detection, frames: DetectionData, steps: int) -> nn.Module:
    """Return the start after some steps on four frames each."""
    module = FlatModel(task.build_model(0)).module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(module, frames.batch((torch.arange(4) + 4 * step) % len(frames))).backward()
        optimizer.step()
    return module


def main(inputs: int = 20) -> None:
    """Print the times and the largest difference."""
    driving = data.driving("roadworld-drives", preset="tiny")
    task = Detection(preset("tiny"))
    tokens = [token for domain in DOMAINS for token in driving.samples(domain, "train")][:inputs]
    console = Console()
    with one_thread():
        frames = detection_data(driving, tokens, task.config)
        first, second = trained(task, frames, 4), trained(task, frames, 8)
        chosen = list(torch.arange(len(frames)).split(1))

        def forward(model: nn.Module, rows: Tensor) -> object:
            return task.predict(model, frames.batch(rows))

        layers = partition(first, called_modules(first, lambda model: forward(model, chosen[0])))
        names = {name for layer in layers for name in layer.modules}
        stacks = [
            pair
            for group in representations(first, second, names, chosen, forward, torch.cat)
            for pair in group.values()
        ]

        def passes(join: Callable[[list[Tensor]], Tensor] | None) -> None:
            for _ in representations(first, second, names, chosen, forward, join):
                pass

        def scores() -> dict[str, float]:
            return layer_scores(first, second, layers, chosen, forward, Scoring(), 0, join=torch.cat)

        def exact() -> list[float]:
            return [linear_cka(a, b) for x, y in stacks for a, b in zip(x, y)]

        def single() -> list[float]:
            return [score for x, y in stacks for score in stacked_cka(x.clone(), y.clone())]

        parts: dict[str, Callable[[], object]] = {
            "activations, one input at a time": lambda: passes(None),
            "activations, inputs together": lambda: passes(torch.cat),
            "CKA in float64": exact,
            "CKA in float32": single,
            "all of it": scores,
        }
        table = Table("part", "ms an input", title=f"Scores of {len(layers)} layers on {len(chosen)} inputs")
        for name, call in parts.items():
            table.add_row(name, f"{1e3 * seconds(call, 3) / len(chosen):.1f}")
        console.print(table)
        apart = max(abs(a - b) for a, b in zip(exact(), single(), strict=True) if a == a)
        console.print(f"float32 against float64: at most {apart:.1e} apart")


if __name__ == "__main__":
    typer.run(main)
