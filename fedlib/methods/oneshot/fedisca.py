"""FedISCA (Kang et al., MICCAI 2023): images synthesised from the clients' models, and clients adapted to noise.

The student learns from every intermediate image of a synthesis, from noise to the realistic one, with two
teachers: the ensemble E, and E', whose BatchNorm statistics follow these images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.methods.oneshot.base import Problem, Result, at_least, budget, check, device_of, uploaded
from fedlib.methods.oneshot.ensemble import Ensemble
from fedlib.methods.oneshot.inversion import Inversion, invert
from fedlib.methods.oneshot.local_training import step_decay
from fedlib.methods.vcl.head import kd_loss


@dataclass(frozen=True)
class FedISCA:
    """Settings; the defaults are the paper's.

    Attributes:
        inversion: how images are made; one batch in an epoch.
        epochs: at the server.
        lr: of the student's SGD; a tenth from half, a hundredth from three quarters of the epochs on.
        momentum: of the student's SGD.
        weight_decay: of the student's SGD.
        temperature: of the distillation.
    """

    inversion: Inversion = field(default_factory=Inversion)
    epochs: int = 100
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    temperature: float = 20.0

    def __post_init__(self) -> None:
        at_least(self, {"epochs": 1, "momentum": 0.0, "weight_decay": 0.0})
        check(self, lr=(self.lr > 0, "above 0"), temperature=(self.temperature > 0, "above 0"))

    @classmethod
    def small(cls) -> FedISCA:
        """Return the budget for small images on a CPU."""
        return cls(inversion=Inversion.small(), epochs=10, lr=0.02)

    def optimizer(self, student: nn.Module) -> torch.optim.SGD:
        """Return the student's optimizer."""
        return torch.optim.SGD(
            student.parameters(), self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


def two_teachers_loss(
    student: Tensor, ensemble: Tensor, adapted: Tensor, alpha: float, temperature: float
) -> Tensor:
    """Return alpha KD_T(S, E) + (1 - alpha) KD_T(S, E') of logits (B, C), ().

    ``alpha`` in [0, 1) says how realistic the images are.
    """
    return alpha * kd_loss(student, ensemble, temperature) + (1 - alpha) * kd_loss(
        student, adapted, temperature
    )


def fedisca(
    models: Sequence[nn.Module], student: nn.Module, problem: Problem, settings: FedISCA, seed: int
) -> Result:
    """Distil the clients' models into ``student`` (in place) without data; the last epoch counts.

    The images of all steps of one epoch are in memory: steps x batch_size images of four bytes a value.

    Args:
        models: of each client, with BatchNorm; they stay as they are.
        student: the global model to train.
        problem: classes and shapes.
        settings: see :class:`FedISCA`.
        seed: of the experiment.

    Raises:
        InputError: no client.
    """
    device = device_of(student)
    ledger = uploaded(models)
    ensemble = Ensemble(models, device)
    adapted = ensemble.adapted()  # E' goes on from epoch to epoch
    optimizer = settings.optimizer(student)
    schedule = step_decay(optimizer, settings.epochs)
    history = []
    with seeds.torch_global(seed, "fedisca dropout"):
        for epoch in range(settings.epochs):
            random = seeds.torch_generator(seed, "fedisca", epoch)
            snapshots = list(invert(ensemble, problem, settings.inversion, random, device))
            for x in reversed(snapshots):
                adapted.adapt(x)
            student.train()
            total = 0.0
            for step, x in enumerate(snapshots):
                alpha = step / len(snapshots)
                with torch.no_grad():
                    logits = ensemble(x)
                loss = two_teachers_loss(student(x), logits, adapted.adapt(x), alpha, settings.temperature)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            schedule.step()
            history.append({"epoch": float(epoch), "student_loss": total / len(snapshots)})
    return Result("fedisca", student.eval(), history, ledger, budget(problem, settings, len(models)))
