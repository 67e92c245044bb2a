"""Learning without forgetting (Li and Hoiem, ECCV 2016): keep the old outputs on the new samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.strategy import Context, Net, Strategy, frozen_copy, non_negative
from fedlib.methods.vcl.head import kd_loss


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the mean over samples of -sum_c softmax(teacher / T)_c log softmax(student / T)_c, ().

    Args:
        student: logits, (B, C).
        teacher: logits, (B, C).
        temperature: T > 0.
    """
    targets = functional.softmax(teacher / temperature, dim=1)
    return functional.cross_entropy(student / temperature, targets)


@dataclass(kw_only=True)
class Distilled(Strategy):
    """Keeps the network of the last task as a teacher."""

    category: ClassVar[str] = "R"
    stores: ClassVar[str] = "network of the last task"

    teacher: Net | None = field(init=False, repr=False)

    def start(self, context: Context) -> None:
        """Begin without a teacher."""
        super().start(context)
        self.teacher = None

    def end_task(self, data: ImageData) -> None:
        """Make the present network the teacher."""
        self.teacher = frozen_copy(self.net)

    def state_dict(self) -> State:
        """Return the teacher."""
        return {} if self.teacher is None else model_state(self.teacher)


@dataclass(kw_only=True)
class LwF(Distilled):
    """Loss CE + lambda KD_T(old logits of the batch, those of the frozen teacher).

    Attributes:
        strength: lambda.
        temperature: T.
        form: ``ce`` cross-entropy of the softened outputs, as in FACIL; ``kl`` T^2 times their divergence.
    """

    label: ClassVar[str] = "LwF"

    strength: float = 1.0
    temperature: float = 2.0
    form: Literal["ce", "kl"] = "ce"

    def __post_init__(self) -> None:
        non_negative(strength=self.strength)
        check_temperature(self.temperature)
        choose("form", self.form, ("ce", "kl"))

    def distillation(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return KD_T () of logits (B, rows) and the teacher's logits (B, old rows)."""
        form = soft_cross_entropy if self.form == "ce" else kd_loss
        return form(logits[:, : targets.shape[1]], targets, self.temperature)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, from the second task on with the distillation."""
        logits = self.net(x)
        loss = self.cross_entropy(logits, y)
        if self.teacher is None:
            return loss
        with torch.no_grad():
            targets = self.teacher(x)
        return loss + self.strength * self.distillation(logits, targets)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not above 0.

    Raises:
        InputError: naming it.
    """
    if not temperature > 0:
        raise InputError(f"temperature is {temperature!r}; allowed: a number above 0")
