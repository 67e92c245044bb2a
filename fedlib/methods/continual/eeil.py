"""End-to-end incremental learning (Castro et al., ECCV 2018): distillation, then balanced fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.exemplars import Rehearsal
from fedlib.methods.continual.lwf import check_temperature, soft_cross_entropy
from fedlib.methods.continual.strategy import (
    Context,
    Net,
    concatenated,
    embedded,
    frozen_copy,
    non_negative,
)
from fedlib.methods.continual.training import Training, fit
from fedlib.methods.mpt.baselines.icarl import herding

NOISE, FALL = 0.3, 0.55  # of the gradient noise


@dataclass(kw_only=True)
class EEIL(Rehearsal):
    """Loss CE over all seen classes + lambda sum_{old tasks} CE_T(f_task, f_task^old), with exemplars.

    A second stage trains on as many new samples as there are exemplars. The present task's rows are distilled
    there too; their teacher is the network of the first stage.

    Attributes:
        strength: lambda.
        temperature: T.
        tuning_epochs: of the second stage; 0 for none.
        tuning_lr: step size of the second stage, as a share of the first one's.
        noise: whether Gaussian noise of standard deviation 0.3 / (1 + e)^0.55 is added to the gradients in epoch e
            of a stage, 0-based.
    """

    label: ClassVar[str] = "EEIL"

    strength: float = 1.0
    temperature: float = 2.0
    tuning_epochs: int = 40
    tuning_lr: float = 0.01
    noise: bool = False

    first_stage: Net | None = field(init=False, repr=False)
    _noise: torch.Generator = field(init=False, repr=False)
    _step: int = field(init=False, repr=False)
    _steps: int = field(init=False, repr=False)  # of an epoch

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative(strength=self.strength)
        check_temperature(self.temperature)
        if self.tuning_epochs < 0 or not self.tuning_lr > 0:
            raise InputError(
                f"tuning_epochs is {self.tuning_epochs!r} and tuning_lr {self.tuning_lr!r}; "
                "allowed: at least 0, above 0"
            )

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 3 epochs in the second stage, at a tenth of the step size."""
        return cls(tuning_epochs=3, tuning_lr=0.1)

    def start(self, context: Context) -> None:
        """Begin without exemplars."""
        super().start(context)
        self.first_stage = None

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy with the distillation of every head that has a teacher."""
        logits = self.net(x)
        loss = self.cross_entropy(logits, y)
        if self.teacher is None:
            return loss
        with torch.no_grad():
            targets = self.teacher(x)
            if self.first_stage is not None:
                targets = torch.cat([targets, self.first_stage(x)[:, self.old :]], dim=1)
        first = 0
        for task in self.context.tasks[: self.context.t + (self.first_stage is not None)]:
            rows = slice(first, first + len(task))
            term = soft_cross_entropy(logits[:, rows], targets[:, rows], self.temperature)
            loss, first = loss + self.strength * term, rows.stop
        return loss

    def after_backward(self) -> None:
        """Add the noise."""
        if not self.noise:
            return
        scale = NOISE / (1 + self._step // self._steps) ** FALL
        for p in self.net.parameters():
            if p.grad is not None:
                p.grad += scale * torch.randn(p.shape, generator=self._noise).to(p.device)
        self._step += 1

    def balanced(self, data: ImageData) -> ImageData:
        """Return the exemplars and as many new samples, herded, equally many of each class if there are."""
        kept = self.memory.data()
        z, chosen = embedded(self.net, data).cpu(), []
        shares = np.array_split(np.arange(len(kept)), self.seen - self.old)
        for c, share in zip(self.context.tasks[self.context.t], shares):
            rows = np.flatnonzero(data.labels == c)
            if len(share):
                chosen.append(data.subset(rows[herding(z[rows], len(share)).numpy()]))
        return concatenated([kept, *chosen])

    def stage(
        self, data: ImageData, validation: ImageData | None, settings: Training, name: str
    ) -> list[dict[str, float]]:
        """Train one stage."""
        self._noise, self._step = self.context.generator("noise", name), 0
        self._steps = -(-len(data) // settings.batch_size)
        return fit(self, data, validation, settings, name, self.label)

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train in two stages."""
        settings = self.adapt(self.context.training)
        history = self.stage(self.training_data(data), validation, settings, "main")
        if self.tuning_epochs and self.memory.classes:
            self.first_stage = frozen_copy(self.net)
            tuning = replace(settings, lr=settings.lr * self.tuning_lr, epochs=self.tuning_epochs)
            second = self.stage(self.balanced(data), validation, tuning, "balanced")
            self.first_stage = None
            history += [row | {"epoch": len(history) + row["epoch"]} for row in second]
        return history
