"""DENSE (Zhang et al., NeurIPS 2022): a generator that makes images between student and ensemble, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import choose
from fedlib.methods.oneshot.base import Problem, Result, at_least, budget, check, device_of, uploaded
from fedlib.methods.oneshot.distillation import BatchNormDistance, crop_and_flip
from fedlib.methods.oneshot.ensemble import Ensemble
from fedlib.methods.oneshot.generator import new_generator
from fedlib.methods.vcl.head import kd_loss

CROP_PADDING = 4  # pixels


@dataclass(frozen=True)
class DENSE:
    """Settings; the defaults are the paper's.

    Attributes:
        epochs: at the server; each adds one batch of images to the pool.
        generator_steps: for one batch of images, with a new generator.
        batch_size: images in a batch, of synthesis and of distillation.
        nz: length of the noise.
        width: channels of the generator's first layers.
        lr_generator: of Adam with betas 0.5 and 0.999, for generator and noise.
        lr_student: of SGD with momentum 0.9.
        temperature: of the distillation.
        batch_norm: weight of the distance of BatchNorm statistics.
        one_hot: weight of the cross-entropy to the drawn targets.
        adversarial: weight of the disagreement of student and teacher.
        batch_norm_reduce: over the clients; ``mean`` as in the paper, ``sum`` as in its code.
    """

    epochs: int = 200
    generator_steps: int = 30
    batch_size: int = 256
    nz: int = 256
    width: int = 128
    lr_generator: float = 1e-3
    lr_student: float = 5e-3
    temperature: float = 20.0
    batch_norm: float = 1.0
    one_hot: float = 1.0
    adversarial: float = 1.0
    batch_norm_reduce: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        at_least(self, {"epochs": 1, "generator_steps": 1, "batch_size": 2, "nz": 1, "width": 2})
        at_least(self, {"batch_norm": 0.0, "one_hot": 0.0, "adversarial": 0.0})
        for name in ("lr_generator", "lr_student", "temperature"):
            check(self, **{name: (getattr(self, name) > 0, "above 0")})
        choose("batch_norm_reduce", self.batch_norm_reduce, ("mean", "sum"))

    @classmethod
    def small(cls) -> DENSE:
        """Return the budget for small images on a CPU."""
        return cls(epochs=20, generator_steps=10, batch_size=64, width=32, lr_generator=1e-2, lr_student=1e-2)


def adversarial_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return -mean_i 1{argmax differs} KL( softmax(teacher_i) || softmax(student_i) ), ().

    Args:
        student: logits (B, C).
        teacher: logits (B, C).
    """
    log_q, log_p = functional.log_softmax(student, dim=1), functional.log_softmax(teacher, dim=1)
    divergence = functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)  # (B,)
    return -((student.argmax(1) != teacher.argmax(1)) * divergence).mean()


def synthesise(
    teacher: Ensemble, student: nn.Module, problem: Problem, settings: DENSE, seed: int, epoch: int
) -> tuple[Tensor, float]:
    """Return the batch of images (B, channels, s, s) with the lowest loss of a new generator, and that loss.

    Images are in the scale that the models expect. Neither student nor teacher changes.
    """
    device = device_of(student)
    random = seeds.torch_generator(seed, "dense synthesis", epoch)
    generator = new_generator(
        settings.nz, problem, "sigmoid", settings.width, device, seed, "dense generator", epoch
    )
    noise = torch.randn(settings.batch_size, settings.nz, generator=random).to(device).requires_grad_()
    targets = torch.randint(problem.num_classes, (settings.batch_size,), generator=random).sort().values
    learned = [noise, *generator.parameters()]
    optimizer = torch.optim.Adam(learned, settings.lr_generator, betas=(0.5, 0.999))
    best = (float("inf"), torch.empty(0))
    student.eval()
    with BatchNormDistance(list(teacher.models)) as distance:
        for _ in range(settings.generator_steps):
            images = generator(noise)
            x = problem.normalise(crop_and_flip(images, CROP_PADDING, random))
            y = teacher(x)
            # L = b_bn BNLoss + b_oh CE(teacher(x), t) + b_adv L_adv
            loss = (
                settings.batch_norm * distance.value(settings.batch_norm_reduce)
                + settings.one_hot * functional.cross_entropy(y, targets.to(device))
                + settings.adversarial * adversarial_loss(student(x), y)
            )
            if float(loss.detach()) < best[0]:
                best = float(loss.detach()), problem.normalise(images.detach())
            # Gradients of generator and noise alone: the student's own would wait for its next step.
            for value, gradient in zip(learned, torch.autograd.grad(loss, learned)):
                value.grad = gradient
            optimizer.step()
    return best[1], best[0]


def dense(
    models: Sequence[nn.Module], student: nn.Module, problem: Problem, settings: DENSE, seed: int
) -> Result:
    """Distil the clients' models into ``student`` (in place) without data.

    The pool of images lives in memory: epochs x batch_size images of four bytes a value.

    Args:
        models: of each client, with BatchNorm; they stay as they are.
        student: the global model to train.
        problem: classes and shapes.
        settings: see :class:`DENSE`.
        seed: of the experiment.

    Raises:
        InputError: no client.
        FloatingPointError: no synthesised image has a finite loss.
    """
    ledger = uploaded(models)
    teacher = Ensemble(models, device_of(student))
    optimizer = torch.optim.SGD(student.parameters(), settings.lr_student, momentum=0.9)
    pool: list[Tensor] = []
    history = []
    with seeds.torch_global(seed, "dense dropout"):
        for epoch in range(settings.epochs):
            images, synthesis_loss = synthesise(teacher, student, problem, settings, seed, epoch)
            if not len(images):
                raise FloatingPointError(f"epoch {epoch}: no synthesised image has a finite loss")
            pool.append(images)
            stored = torch.cat(pool)
            student.train()
            total = 0.0
            order = torch.randperm(len(stored), generator=seeds.torch_generator(seed, "dense batches", epoch))
            for rows in order.split(settings.batch_size):
                x = stored[rows.to(stored.device)]
                with torch.no_grad():
                    y = teacher(x)
                loss = kd_loss(student(x), y, settings.temperature)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(x)
            history.append(
                {
                    "epoch": float(epoch),
                    "synthesis_loss": synthesis_loss,
                    "student_loss": total / len(stored),
                    "pool": float(len(stored)),
                }
            )
    return Result("dense", student.eval(), history, ledger, budget(problem, settings, len(models)))
