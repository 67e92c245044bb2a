"""Memory aware synapses (Aljundi et al., ECCV 2018): importance is how much the outputs depend on a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedlib.errors import choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual import importance
from fedlib.methods.continual.ewc import check_samples, check_share
from fedlib.methods.continual.quadratic import Quadratic, combine


@dataclass(kw_only=True)
class MAS(Quadratic):
    """Loss CE + (lambda/2) sum_i Omega_i (theta_i - theta*_i)^2; labels play no part in Omega.

    Attributes:
        strength: lambda.
        norm: ``squared`` is ``Omega_i = E_x |d ||f(x)||^2 / d theta_i|``; ``batch`` uses the gradient of a batch's
            mean norm, not squared, as FACIL does.
        merge: ``sum`` Omega <- Omega + Omega_t, or ``average`` Omega <- a Omega + (1 - a) Omega_t (FACIL).
        a: of ``average``.
        samples: of a task for Omega; None for all.
    """

    label: ClassVar[str] = "MAS"
    stores: ClassVar[str] = "parameters, importance"

    strength: float = 1.0
    norm: Literal["squared", "batch"] = "squared"
    merge: Literal["sum", "average"] = "sum"
    a: float = 0.5
    samples: int | None = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("norm", self.norm, ("squared", "batch"))
        choose("merge", self.merge, ("sum", "average"))
        check_samples(self.samples)
        check_share(a=self.a)

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 200 samples for Omega."""
        return cls(samples=200)

    def sensitivity(self, data: ImageData) -> State:
        """Return Omega_t of the present task."""
        squared = self.norm == "squared"

        def objective(logits: Tensor, y: Tensor) -> Tensor:
            return (logits.square().sum() if squared else torch.linalg.vector_norm(logits, dim=1).mean())[
                None
            ]

        chosen = importance.sample(data, self.samples, self.context.generator("importance"))
        size = 1 if squared else self.context.training.batch_size
        return importance.gradient_moments(self.net, self.parameters(), chosen, objective, "abs", size)

    def accumulated(self, old: State, new: State) -> State:
        """Return the merged importance; ``new`` itself after the first task."""
        keep, add = (1.0, 1.0) if self.merge == "sum" else (self.a, 1 - self.a)
        return {name: combine(old.get(name), value, keep, add) for name, value in new.items()}

    def end_task(self, data: ImageData) -> None:
        """Measure Omega of the present task and merge it."""
        self.omega = self.total(data)
        super().end_task(data)

    def total(self, data: ImageData) -> State:
        """Return Omega of the tasks so far."""
        return self.accumulated(self.omega, self.sensitivity(data))
