"""Optimizers on one parameter vector."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from fedlib.federation.model_state import State


class Optimizer(Protocol):
    """What local training asks of an optimizer."""

    def step(self, values: Tensor, grad: Tensor, lr: float) -> None:
        """Change ``values`` (P,) in place by one step along ``grad`` (P,)."""

    def state(self) -> State:
        """Return what the next round needs to go on."""

    def load(self, state: State) -> None:
        """Go on from ``state``; an empty one starts anew."""


class SGD:
    """SGD with momentum and weight decay:

        g <- grad + weight_decay w,    v <- momentum v + g  (v = g at first),    w <- w - lr v

    The same bits as torch.optim.SGD, written out because on one vector it takes three operations, and the first
    optimizer of a process costs over a second of imports.

    Args:
        momentum: share of the velocity that is kept, in [0, 1).
        weight_decay: L2 penalty.
    """

    def __init__(self, momentum: float, weight_decay: float) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocity: Tensor | None = None

    def step(self, values: Tensor, grad: Tensor, lr: float) -> None:
        """Change ``values`` (P,) in place by one step along ``grad`` (P,)."""
        with torch.no_grad():
            if self.weight_decay:
                grad = grad.add(values, alpha=self.weight_decay)
            if self.momentum:
                if self.velocity is None:
                    self.velocity = grad.clone()
                else:
                    self.velocity.mul_(self.momentum).add_(grad)
                grad = self.velocity
            values.add_(grad, alpha=-lr)

    def state(self) -> State:
        """Return the velocity (P,)."""
        return {} if self.velocity is None else {"velocity": self.velocity.cpu()}

    def load(self, state: State) -> None:
        """Go on from ``state``; an empty one starts anew."""
        self.velocity = state["velocity"].clone() if state else None


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW on the whole vector.

    Args:
        weight_decay: decoupled penalty.
    """

    def __init__(self, weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self._state: State = {}
        self._optimizer: torch.optim.AdamW | None = None
        self._values = nn.Parameter(torch.empty(0))

    def step(self, values: Tensor, grad: Tensor, lr: float) -> None:
        """Change ``values`` (P,) in place by one step along ``grad`` (P,)."""
        if self._optimizer is None:
            self._values = nn.Parameter(values)  # shares the storage
            self._optimizer = torch.optim.AdamW(
                [self._values], lr=lr, weight_decay=self.weight_decay, fused=True
            )
            if self._state:
                self._optimizer.state[self._values] = {
                    name: t.clone().to(values.device) for name, t in self._state.items()
                }
        self._optimizer.param_groups[0]["lr"] = lr
        self._values.grad = grad
        self._optimizer.step()

    def state(self) -> State:
        """Return both moments (P,) and the number of steps ()."""
        if self._optimizer is None:
            return self._state
        return {name: t.detach().cpu() for name, t in self._optimizer.state[self._values].items()}

    def load(self, state: State) -> None:
        """Go on from ``state``; an empty one starts anew."""
        self._state, self._optimizer = dict(state), None
