"""Synaptic intelligence (Zenke et al., ICML 2017): importance is a parameter's share in the fall of the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fedlib.errors import InputError
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.quadratic import Quadratic, combine


@dataclass(kw_only=True)
class PathIntegral(Quadratic):
    """Adds up omega_i = -sum g_i dtheta_i, with g the gradient of the loss without the penalty."""

    factor: ClassVar[float] = 1.0
    tracks_steps: ClassVar[bool] = True

    path: State = field(init=False, repr=False)
    gradient: State = field(init=False, repr=False)
    first: State = field(init=False, repr=False)

    def begin_task(self, data: ImageData) -> None:
        """Begin a new path at the present parameters."""
        self.first = {name: p.detach().clone() for name, p in self.parameters().items()}
        self.path = {name: torch.zeros_like(p) for name, p in self.first.items()}
        self.gradient = {}

    def after_backward(self) -> None:
        """Keep the gradient without the part of the penalty."""
        self.gradient = {
            name: p.grad.detach() - self.penalty_gradient(name, p)
            for name, p in self.parameters().items()
            if p.grad is not None
        }

    def after_step(self, old: State) -> None:
        """Add the step to the path."""
        # omega_i <- omega_i - g_i dtheta_i
        for name, p in self.parameters().items():
            if name in self.gradient:
                self.path[name] -= self.gradient[name] * (p.detach() - old[name])

    def moved(self) -> State:
        """Return theta - theta at the begin of the task."""
        return {name: p.detach() - self.first[name] for name, p in self.parameters().items()}


@dataclass(kw_only=True)
class SI(PathIntegral):
    """Loss CE + c sum_i Omega_i (theta_i - theta*_i)^2.

    Attributes:
        strength: c.
        xi: keeps the importance of parameters that hardly moved finite.
    """

    label: ClassVar[str] = "SI"
    stores: ClassVar[str] = "parameters, path integral, importance"

    strength: float = 0.1
    xi: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_xi(self.xi)

    def end_task(self, data: ImageData) -> None:
        """Turn the path into importance."""
        # Omega_i <- Omega_i + omega_i / ((theta_i - theta_i^start)^2 + xi)
        moved = self.moved()
        self.omega = {
            name: combine(self.omega.get(name), path / (moved[name].square() + self.xi), 1.0, 1.0)
            for name, path in self.path.items()
        }
        super().end_task(data)

    def state_dict(self) -> State:
        """Return theta*, omega and Omega."""
        return super().state_dict() | {f"path/{name}": value for name, value in self.path.items()}


def check_xi(xi: float) -> None:
    """Refuse a xi that is not above 0.

    Raises:
        InputError: naming it.
    """
    if not xi > 0:
        raise InputError(f"xi is {xi!r}; allowed: a number above 0")
