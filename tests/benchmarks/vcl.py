"""Time of the parts of VCL-FPFT that are made to be fast; prints a table.

    python tests/benchmarks/vcl.py [--backbone cnn3] [--image-size 28] [--repeats 5]

(1) Synthesis at the size of the public code: 20,000 features of 256 dimensions for each of 8 classes, mixtures of
five clients, against the noise and one matrix product for each class. (2) One variational step (draws, KL, logits,
backward) at C = 11, S = 5, B = 128, d = 256, against forward and backward pass of the encoder on the same batch.
(3) A tenth of a task of head training at the paper's size: 2,000 features for each of two new classes, 8,000 for
each of six old ones. Everything is timed in turns within one process; the figure is the median of the repeats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from fedlib import models, seeds
from fedlib.features.gaussian import ClassGaussian, Mixture
from fedlib.methods.vcl.continual import train_head
from fedlib.methods.vcl.head import GrowingHead
from fedlib.methods.vcl.presets import preset
from fedlib.methods.vcl.proxies import VariationalProxies, variational_loss
from fedlib.methods.vcl.server import synthesise

DIM, CLASSES, CLIENTS, SAMPLES = 256, 8, 5, 20_000


def mixtures() -> list[Mixture]:
    generator = seeds.torch_generator(0, "benchmark")
    tril = 0.02 * torch.randn(DIM, DIM, generator=generator).tril(-1) + 0.1 * torch.eye(DIM)
    return [
        Mixture(
            tuple(
                ClassGaussian(torch.randn(DIM, generator=generator), tril, 100 + 37 * k)
                for k in range(CLIENTS)
            )
        )
        for _ in range(CLASSES)
    ]


def bare_product(made: list[Mixture]) -> None:
    """What no implementation can do without: the noise, one matrix product and the lengths."""
    generator = seeds.torch_generator(0)
    for mixture in made:
        eps = torch.randn(SAMPLES, DIM, generator=generator)
        functional.normalize(eps @ mixture.components[0].tril.T, dim=1)


def variational_step() -> Callable[[], None]:
    generator = seeds.torch_generator(0, "benchmark")
    proxies = VariationalProxies.initial(11, DIM, 0.1 / DIM**0.5, generator)
    features = functional.normalize(torch.randn(128, DIM, generator=generator), dim=1)
    labels = torch.arange(128) % 11

    def step() -> None:
        proxies.zero_grad(set_to_none=True)
        z = features.clone().requires_grad_()
        variational_loss(
            z, labels, proxies, generator, samples=5, tau=0.6, kl_weight=1e-3, prior_scale=1 / DIM**0.5
        ).backward()

    return step


def encoder_step(backbone: str, image_size: int) -> Callable[[], None]:
    encoder = models.embedder(backbone, dim=DIM, in_channels=3, image_size=image_size, seed=0)
    images = torch.randn(128, 3, image_size, image_size, generator=seeds.torch_generator(0, "images"))
    images = images.to(memory_format=torch.channels_last)

    def step() -> None:
        encoder.zero_grad(set_to_none=True)
        encoder(images).square().mean().backward()

    return step


def head_task(made: list[Mixture]) -> Callable[[], None]:
    options = preset("paper", head_epochs=10)  # a tenth
    generator = seeds.torch_generator(0, "benchmark")
    current = synthesise(made, {6: 2000, 7: 2000}, generator)
    replay = synthesise(made, dict.fromkeys(range(6), 8000), generator)
    teacher = GrowingHead(DIM)
    teacher.expand(range(6), torch.randn(6, DIM, generator=generator))

    def task() -> None:
        head = GrowingHead(DIM)
        head.expand(range(6), teacher.weight.detach())
        head.expand((6, 7), torch.zeros(2, DIM))
        optimizer = torch.optim.AdamW(head.parameters(), lr=5e-4, weight_decay=1e-4, fused=True)
        train_head(head, optimizer, current, replay, teacher, options, seeds.torch_generator(0))

    return task


def main(
    backbone: Annotated[str, typer.Option(help="encoder of part 2")] = "cnn3",
    image_size: Annotated[int, typer.Option(help="side of its images, pixels")] = 28,
    repeats: Annotated[int, typer.Option(help="repeats, >= 3")] = 5,
) -> None:
    """Print milliseconds and ratios."""
    made = mixtures()
    sizes = dict.fromkeys(range(CLASSES), SAMPLES)
    parts: dict[str, Callable[[], object]] = {
        "synthesis": lambda: synthesise(made, sizes, seeds.torch_generator(0)),
        "bare product": lambda: bare_product(made),
        "variational step": variational_step(),
        "encoder step": encoder_step(backbone, image_size),
        "head, 10 epochs of a task": head_task(made),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats + 1):  # the first is not counted
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            if repeat:
                times[name].append(1000 * (time.perf_counter() - start))
    median = {name: statistics.median(values) for name, values in times.items()}
    table = Table(title=f"{torch.get_num_threads()} threads, {backbone} at {image_size} pixels")
    for column in ("part", "ms", "against", "ratio"):
        table.add_column(column, justify="left" if column in ("part", "against") else "right")
    table.add_row(
        "synthesis, 8 x 20,000 x 256",
        f"{median['synthesis']:.0f}",
        "bare product",
        f"{median['synthesis'] / median['bare product']:.2f}",
    )
    table.add_row(
        "variational step, C 11, S 5, B 128",
        f"{median['variational step']:.1f}",
        "encoder step",
        f"{median['variational step'] / median['encoder step']:.2f}",
    )
    table.add_row("encoder step", f"{median['encoder step']:.1f}", "", "")
    table.add_row("head, 10 epochs of a task", f"{median['head, 10 epochs of a task']:.0f}", "", "")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
