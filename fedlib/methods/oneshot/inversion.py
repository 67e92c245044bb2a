"""Images from a teacher by gradient descent on the pixels (model inversion), for FedISCA and E-FedISCA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.methods.oneshot.base import Problem, at_least, balanced_targets, check
from fedlib.methods.oneshot.distillation import BatchNormDistance, total_variation
from fedlib.methods.oneshot.ensemble import Ensemble


@dataclass(frozen=True)
class Inversion:
    """Settings; the defaults are those of Kang et al. 2023 for 28-pixel images.

    Attributes:
        steps: of Adam on the pixels (1,000 for 224-pixel images).
        batch_size: images that are made together (50 for 224-pixel images).
        lr: of Adam.
        shift: largest random shift before the teacher, pixels, each way (30 for 224-pixel images).
        variation: weight of the total variation.
        batch_norm: weight of the distance of BatchNorm statistics, summed over the clients.
    """

    steps: int = 500
    batch_size: int = 256
    lr: float = 0.05
    shift: int = 2
    variation: float = 2.5e-5
    batch_norm: float = 10.0

    def __post_init__(self) -> None:
        at_least(self, {"steps": 1, "batch_size": 2, "shift": 0, "variation": 0.0, "batch_norm": 0.0})
        check(self, lr=(self.lr > 0, "above 0"))

    @classmethod
    def small(cls) -> Inversion:
        """Return the budget for small images on a CPU."""
        return cls(steps=50, batch_size=64)


def invert(
    teacher: Ensemble, problem: Problem, settings: Inversion, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the images (B, channels, s, s) after each step, from noise to what the teacher takes for the classes.

    They are in the scale that the models expect; every class is as frequent as any other.

        L(x) = CE(E(roll(x)), t) + 2.5e-5 TV(x) + 10 BNLoss(roll(x)),    x ~ N(0, 1) at first
    """
    shape = (settings.batch_size, problem.channels, problem.image_size, problem.image_size)
    x = torch.randn(shape, generator=generator).to(device).requires_grad_()
    targets = balanced_targets(settings.batch_size, problem.num_classes).to(device)
    optimizer = torch.optim.Adam([x], settings.lr)
    with BatchNormDistance(list(teacher.models)) as distance:
        for _ in range(settings.steps):
            shifts = torch.randint(-settings.shift, settings.shift + 1, (2,), generator=generator).tolist()
            logits = teacher(torch.roll(x, shifts, dims=(2, 3)))
            loss = (
                functional.cross_entropy(logits, targets)
                + settings.variation * total_variation(x)
                + settings.batch_norm * distance.value("sum")
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield x.detach().clone()
