"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, Algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedlib.errors import InputError
from fedlib.federation.aggregation import in_client_order, weighted_mean
from fedlib.federation.messages import Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import State
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """The local step goes along g - c_i + c; c_i is the client's control, c the server's.

    The new control is exact for plain SGD only. With momentum or AdamW it is a heuristic.

    Attributes:
        clients: number of clients of the federation, by which changes of c are divided.
    """

    name: ClassVar[str] = "scaffold"

    clients: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients < 1:
            raise InputError(f"clients is {self.clients}; allowed: at least 1")

    def broadcast_statistics(self, server: Server) -> State:
        """Return the server's control c by parameter name; none before the first round."""
        return {name: t for name, t in server.memory.items() if name.startswith("control/")}

    def correct_gradient(self, local: Local) -> None:
        """g <- g - c_i + c."""
        for name in local.model.trainable():
            grad = local.model.view(local.model.grad, name)
            key = f"control/{name}"
            if key in local.memory:
                grad.sub_(local.memory[key].to(grad.device))
            if key in local.broadcast.statistics:
                grad.add_(local.broadcast.statistics[key].to(grad.device))

    def train(self, task: Task, local: Local) -> dict[str, float]:
        """Train, then c_i+ = c_i - c + (G - w) / (K eta)."""
        metrics = super().train(task, local)
        rates = [self._rate(local, step) for step in range(local.steps)]
        moved = local.model.named((local.start - local.model.values) / sum(rates))
        changes: State = {}
        for name, drift in moved.items():
            key = f"control/{name}"
            zero = torch.zeros_like(drift)
            old = local.memory.get(key, zero)
            new = old - local.broadcast.statistics.get(key, zero) + drift
            changes[key], local.memory[key] = new - old, new
        local.memory |= {f"change/{key}": change for key, change in changes.items()}
        return metrics

    def statistics(self, task: Task, local: Local) -> State:
        """Return the change of the client's control; it is sent and not kept."""
        names = [name for name in local.memory if name.startswith("change/")]
        return {name.removeprefix("change/"): local.memory.pop(name) for name in names}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """G <- sum_i n_i / n w_i and c <- c + 1/N sum_i (change of c_i)."""
        total: State = {}

        def noted(items: Iterable[Update]) -> Iterable[Update]:
            for update in items:
                for name, change in update.statistics.items():
                    total[name] = total.get(name, torch.zeros_like(change).double()) + change.double()
                yield update

        weights = weighted_mean(noted(in_client_order(self.weighed(updates))), server.weights)
        control = {
            name: (server.memory.get(name, torch.zeros_like(change)).double() + change / self.clients).float()
            for name, change in total.items()
        }
        return Server(weights, server.memory | control)

    def _rate(self, local: Local, step: int) -> float:
        taken, local.steps = local.steps, step
        try:
            return self.lr_at(local)
        finally:
            local.steps = taken
