"""What EWC, MAS, SI, RWalk and MUC-MAS share: a quadratic pull to the parameters of the last task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.strategy import Context, Strategy, non_negative, prefixed
from fedlib.methods.continual.training import trainable


@dataclass(kw_only=True)
class Quadratic(Strategy):
    """Loss CE + strength * factor * sum_i Omega_i (theta_i - theta*_i)^2 over the feature network.

    Attributes:
        strength: lambda.
        include_head: whether the head's rows of earlier tasks are in the sum.
    """

    category: ClassVar[str] = "R"
    factor: ClassVar[float] = 0.5

    strength: float = 1.0
    include_head: bool = False

    anchor: State = field(init=False, repr=False)
    omega: State = field(init=False, repr=False)

    def __post_init__(self) -> None:
        non_negative(strength=self.strength)

    def start(self, context: Context) -> None:
        """Begin without a pull."""
        super().start(context)
        self.anchor, self.omega = {}, {}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the penalty is about, by name."""
        return {
            name: p
            for name, p in trainable(self.net).items()
            if self.include_head or not name.startswith("head.")
        }

    def penalty(self) -> Tensor:
        """Return sum_i Omega_i (theta_i - theta*_i)^2, (); 0 before the first task is over."""
        total = self.net.head.bias.new_zeros(())
        for name, p in self.parameters().items():
            if name in self.omega:
                old = p[: len(self.anchor[name])]  # the head has grown since
                total = total + (self.omega[name] * (old - self.anchor[name]).square()).sum()
        return total

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy with the penalty."""
        return super().loss(x, y) + self.strength * self.factor * self.penalty()

    def penalty_gradient(self, name: str, p: Tensor) -> Tensor:
        """Return d (strength * factor * penalty) / d theta of a parameter, in its shape."""
        gradient = torch.zeros_like(p)
        if name in self.omega:
            old = len(self.anchor[name])
            difference = p.detach()[:old] - self.anchor[name]
            gradient[:old] = 2 * self.strength * self.factor * self.omega[name] * difference
        return gradient

    def end_task(self, data: ImageData) -> None:
        """Pull to the present parameters from now on; ``omega`` has to be set before."""
        self.anchor = {name: p.detach().clone() for name, p in self.parameters().items()}

    def state_dict(self) -> State:
        """Return theta* and Omega."""
        return prefixed("anchor", self.anchor) | prefixed("omega", self.omega)


def combine(old: Tensor | None, new: Tensor, keep: float, add: float) -> Tensor:
    """Return keep * old + add * new, or ``new`` where there is no old value.

    Rows that the head did not have yet count as 0 in ``old``.
    """
    if old is None:
        return new
    total = add * new
    total[: len(old)] += keep * old
    return total
