"""Time of the round loop against bare PyTorch loops that do the same work; prints a table of ratios.

    python tests/benchmarks/round_loop.py [--clients 10 200] [--repeats 5]

Work: 5,000 RGB images of 32 x 32 pixels spread over the clients, three-layer CNN, batch 64, SGD with momentum,
one local epoch, FedAvg, evaluation of the global model on 1,000 images. All variants are timed in turns within
one process, so that they see the same machine; the figure is the median of the repeats.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from fedlib import models
from fedlib.data.tensors import Normalizer
from fedlib.federation.model_state import FlatModel
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, run_rounds
from fedlib.federation.tasks import Classification, ImageData
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.federated.optimizers import SGD

BATCH, LR, MOMENTUM = 64, 0.01, 0.9


def build(seed: int) -> nn.Module:
    return models.build("cnn3", num_classes=10, in_channels=3, image_size=32, seed=seed)


def bare_loop(
    parts: list[tuple[torch.Tensor, torch.Tensor]],
    test: tuple[torch.Tensor, torch.Tensor],
    rounds: int,
    *,
    channels_last: bool,
    flat: bool,
    threads: int,
    evaluation_batch: int,
) -> float:
    """What one writes by hand: load the global weights, train on each client, average; seconds a round."""
    torch.set_num_threads(threads)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = build(0).to(memory_format=layout)
    flat_model = FlatModel(model) if flat else None
    global_state = {name: value.clone() for name, value in model.state_dict().items()}
    total = sum(len(labels) for _, labels in parts)
    start = time.perf_counter()
    for _ in range(rounds):
        mean = {name: torch.zeros_like(value) for name, value in global_state.items()}
        for images, labels in parts:
            model.load_state_dict(global_state)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
            flat_optimizer = SGD(MOMENTUM, 0.0)
            for index in torch.randperm(len(labels)).split(BATCH):
                if flat_model:
                    flat_model.grad.zero_()
                else:
                    optimizer.zero_grad()
                functional.cross_entropy(
                    model(images[index].contiguous(memory_format=layout)), labels[index]
                ).backward()
                if flat_model:
                    flat_optimizer.step(flat_model.values, flat_model.grad, LR)
                else:
                    optimizer.step()
            for name, value in model.state_dict().items():
                mean[name] += value * (len(labels) / total)
        global_state = mean
        model.load_state_dict(global_state)
        model.eval()
        with torch.inference_mode():
            for images, labels in zip(test[0].split(evaluation_batch), test[1].split(evaluation_batch)):
                (model(images.contiguous(memory_format=layout)).argmax(1) == labels).sum()
    seconds = (time.perf_counter() - start) / rounds
    return seconds


def fedlib_loop(parts: list[ImageData], test: ImageData, rounds: int, *, workers: int, bf16: bool) -> float:
    """The library; seconds a round, start-up and checkpoints included."""
    method = FedAvg(lr=LR, momentum=MOMENTUM, weight_decay=0.0, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        run_rounds(
            Classification(build, 10, bf16=bf16),
            method,
            Clients(parts),
            Rounds(rounds=rounds, seed=0),
            Path(folder),
            evaluation={"test": test},
            workers=workers,
        )
        return (time.perf_counter() - start) / rounds


def main(
    clients: Annotated[list[int], typer.Option(help="numbers of clients")] = [10, 200],  # noqa: B006
    repeats: Annotated[int, typer.Option(help="repeats, >= 3")] = 5,
    rounds: Annotated[int, typer.Option(help="rounds a repeat")] = 2,
) -> None:
    """Print seconds a round and ratios for each number of clients."""
    console = Console()
    cores = torch.get_num_threads()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (6000, 32, 32, 3), dtype=np.uint8)
    labels = generator.integers(0, 10, 6000)
    normalizer = Normalizer.fit(images)
    test = ImageData(images[5000:], labels[5000:], normalizer)
    dense = normalizer.apply(images).contiguous(), torch.from_numpy(labels)
    for count in clients:
        split = np.array_split(np.arange(5000), count)
        parts = [ImageData(images[index], labels[index], normalizer) for index in split]
        plain = [(dense[0][index], dense[1][index]) for index in split]
        held = (dense[0][5000:], dense[1][5000:])
        bare = dict(parts=plain, test=held, rounds=rounds)
        variants: dict[str, Callable[[], float]] = {
            "plain bare loop": lambda b=bare: bare_loop(
                **b, channels_last=False, flat=False, threads=cores, evaluation_batch=1000
            ),
            "bare loop, same way, 1 thread": lambda b=bare: bare_loop(
                **b, channels_last=True, flat=True, threads=1, evaluation_batch=128
            ),
            "fedlib, 1 process": lambda p=parts: fedlib_loop(p, test, rounds, workers=1, bf16=False),
            "fedlib, 2 processes": lambda p=parts: fedlib_loop(p, test, rounds, workers=2, bf16=False),
            "fedlib, 2 processes, bf16": lambda p=parts: fedlib_loop(p, test, rounds, workers=2, bf16=True),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(repeats):
            for name, variant in variants.items():
                times[name].append(variant())
        plain_times, same_times = times["plain bare loop"], times["bare loop, same way, 1 thread"]
        table = Table(
            "variant", "s/round", "min to max", "/ plain bare", "/ same way", title=f"{count} clients"
        )
        for name, seconds in times.items():
            paired = [
                statistics.median(a / b for a, b in zip(seconds, base)) for base in (plain_times, same_times)
            ]
            table.add_row(
                name,
                f"{statistics.median(seconds):.2f}",
                f"{min(seconds):.2f} to {max(seconds):.2f}",
                *(f"{ratio:.2f}" for ratio in paired),
            )
        console.print(table)
    torch.set_num_threads(cores)
    few = [ImageData(images[:1], labels[:1], normalizer) for _ in range(2)]
    for workers in (1, 2):
        seconds = statistics.median(
            fedlib_loop(few, few[0], 1, workers=workers, bf16=False) for _ in range(repeats)
        )
        console.print(f"start-up and one round of two images, {workers} process(es): {seconds:.3f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    typer.run(main)
