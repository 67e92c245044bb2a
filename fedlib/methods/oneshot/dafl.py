"""DAFL (Chen et al., ICCV 2019): a generator learns what the teacher knows, a student learns from its images.

The teacher is the ensemble of the clients' models. Generator and student take one step each per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import choose
from fedlib.methods.oneshot.base import Problem, Result, at_least, budget, check, device_of, uploaded
from fedlib.methods.oneshot.ensemble import Ensemble
from fedlib.methods.oneshot.generator import new_generator
from fedlib.methods.vcl.head import kd_loss


@dataclass(frozen=True)
class DAFL:
    """Settings; the defaults are the paper's.

    Attributes:
        epochs: at the server.
        iterations: in an epoch.
        batch_size: generated images in an iteration.
        nz: length of the noise.
        width: channels of the generator's first layers.
        lr_generator: of Adam; None means 0.2 for grey and 0.02 for coloured images.
        lr_student: of the student's optimizer; None means 2e-3 for Adam and 0.1 for SGD.
        student_optimizer: ``adam``, or ``sgd`` with momentum 0.9 and weight decay 5e-4.
        one_hot: weight of L_oh.
        activation: weight of L_a.
        entropy: weight of L_ie.
        log_base: of L_ie; e as in the paper, 10 as in the code that is widely copied.
    """

    epochs: int = 200
    iterations: int = 120
    batch_size: int = 512
    nz: int = 100
    width: int = 128
    lr_generator: float | None = None
    lr_student: float | None = None
    student_optimizer: Literal["adam", "sgd"] = "adam"
    one_hot: float = 1.0
    activation: float = 0.1
    entropy: float = 5.0
    log_base: Literal["e", "10"] = "e"

    def __post_init__(self) -> None:
        at_least(self, {"epochs": 1, "iterations": 1, "batch_size": 2, "nz": 1, "width": 2})
        at_least(self, {"one_hot": 0.0, "activation": 0.0, "entropy": 0.0})
        check(
            self,
            lr_student=(self.lr_student is None or self.lr_student > 0, "above 0, or None"),
            lr_generator=(self.lr_generator is None or self.lr_generator > 0, "above 0, or None"),
        )
        choose("student_optimizer", self.student_optimizer, ("adam", "sgd"))
        choose("log_base", self.log_base, ("e", "10"))

    def optimizer(self, student: nn.Module) -> torch.optim.Optimizer:
        """Return the student's optimizer."""
        if self.student_optimizer == "adam":
            return torch.optim.Adam(student.parameters(), self.lr_student or 2e-3)
        return torch.optim.SGD(student.parameters(), self.lr_student or 0.1, momentum=0.9, weight_decay=5e-4)

    @classmethod
    def small(cls) -> DAFL:
        """Return the budget for small images on a CPU."""
        return cls(epochs=20, iterations=30, batch_size=128, width=32, lr_generator=0.02)


def one_hot_loss(logits: Tensor) -> Tensor:
    """Return L_oh = CE(y, argmax y) of the teacher's logits (B, C), (): the teacher should be sure."""
    return functional.cross_entropy(logits, logits.detach().argmax(1))


def activation_loss(features: Sequence[Tensor]) -> Tensor:
    """Return ``L_a = -mean |f(x)|`` of the clients' features (B, d_k), averaged over the clients, ()."""
    return -torch.stack([z.abs().mean() for z in features]).mean()


def entropy_loss(logits: Tensor, log_base: Literal["e", "10"] = "e") -> Tensor:
    """Return L_ie = sum_c pbar_c log pbar_c with pbar the mean softmax of the batch, ().

    Its minimum, -log C, is where all classes are equally frequent.
    """
    mean = functional.softmax(logits, dim=1).mean(0)
    total = torch.special.xlogy(mean, mean).sum()
    return total / math.log(10) if log_base == "10" else total


def dafl(
    models: Sequence[nn.Module], student: nn.Module, problem: Problem, settings: DAFL, seed: int
) -> Result:
    """Distil the clients' models into ``student`` (in place) without data.

    Args:
        models: :class:`fedlib.models.Classifier` of each client; they stay as they are.
        student: the global model to train.
        problem: classes and shapes.
        settings: see :class:`DAFL`.
        seed: of the experiment.

    Raises:
        InputError: no client.
    """
    device = device_of(student)
    ledger = uploaded(models)
    teacher = Ensemble(models, device)
    generator = new_generator(settings.nz, problem, "tanh", settings.width, device, seed, "dafl generator")
    rate = settings.lr_generator or (0.2 if problem.channels == 1 else 0.02)
    for_generator = torch.optim.Adam(generator.parameters(), rate)
    for_student = settings.optimizer(student)
    history = []
    noise = seeds.torch_generator(seed, "dafl noise")
    student.train()
    with seeds.torch_global(seed, "dafl dropout"):
        for epoch in range(settings.epochs):
            sums = torch.zeros(4)
            for _ in range(settings.iterations):
                x = generator(torch.randn(settings.batch_size, settings.nz, generator=noise).to(device))
                y, features = teacher.logits_and_features(x)
                parts = (one_hot_loss(y), activation_loss(features), entropy_loss(y, settings.log_base))
                weights = (settings.one_hot, settings.activation, settings.entropy)
                # L_G = a_oh L_oh + a_a L_a + a_ie L_ie; the student's loss does not reach the generator.
                generator_loss = torch.stack([w * part for w, part in zip(weights, parts)]).sum()
                student_loss = kd_loss(student(x.detach()), y.detach(), 1.0)
                for_generator.zero_grad()
                for_student.zero_grad()
                (generator_loss + student_loss).backward()
                for_generator.step()
                for_student.step()
                sums += torch.stack([part.detach().cpu() for part in (*parts, student_loss)])
            means = (sums / settings.iterations).tolist()
            names = ("one_hot", "activation", "entropy", "student_loss")
            history.append({"epoch": float(epoch), **dict(zip(names, means))})
    return Result("dafl", student.eval(), history, ledger, budget(problem, settings, len(models)))
