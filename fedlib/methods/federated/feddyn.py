"""FedDyn: dynamic regularisation (Acar et al. 2021, Algorithm 1)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation.aggregation import weighted_mean
from fedlib.federation.messages import Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import State
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local

log = logging.getLogger(__name__)

GUARD = 10.0  # largest ||h|| / alpha, in units of the clients' mean step


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """The local objective is L_i(w) - <g_i, w> + alpha/2 ||w - G||^2; the server corrects the mean by h.

    Clients are weighted by their numbers of samples like in the other methods; the paper weights them equally
    (``client_weights``).

    Attributes:
        alpha: weight of the regulariser.
        warmup_rounds: first rounds that are FedAvg.
        exempt_norms: leave normalisation layers to plain averaging; the corrected step is twice the mean one,
            which BatchNorm does not bear.
    """

    name: ClassVar[str] = "feddyn"

    alpha: float = 0.01
    warmup_rounds: int = 0
    exempt_norms: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha > 0:
            raise InputError(f"alpha is {self.alpha}; allowed: above 0")
        if self.warmup_rounds < 0:
            raise InputError(f"warmup_rounds is {self.warmup_rounds}; allowed: at least 0")

    def correct_gradient(self, local: Local) -> None:
        """g <- g - g_i + alpha (w - G)."""
        if local.round <= self.warmup_rounds:
            return
        model = local.model
        pull = (model.values.detach() - local.start).mul_(self.alpha)
        covered = self.covered(local.broadcast.weights)
        for name in model.trainable():
            part = model.view(pull, name)
            if name not in covered:
                part.zero_()
            elif f"dyn/{name}" in local.memory:
                part.sub_(local.memory[f"dyn/{name}"].to(part.device))
        model.grad.add_(pull)

    def train(self, task: Task, local: Local) -> dict[str, float]:
        """Train, then g_i <- g_i - alpha (w - G)."""
        metrics = super().train(task, local)
        if local.round > self.warmup_rounds:
            covered = self.covered(local.broadcast.weights)
            for name, moved in local.model.named(local.model.values - local.start).items():
                if name in covered:
                    old = local.memory.get(f"dyn/{name}", torch.zeros_like(moved))
                    local.memory[f"dyn/{name}"] = old - self.alpha * moved
        return metrics

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """h <- h - alpha sum_i w_i (C_i - G) and G <- sum_i w_i C_i - h / alpha."""
        mean = weighted_mean(self.weighed(updates), server.weights)
        memory, weights = dict(server.memory), dict(mean)
        round = int(memory.get("rounds", torch.tensor(0))) + 1
        memory["rounds"] = torch.tensor(round)
        if round <= self.warmup_rounds:
            return Server(weights, memory)
        steps = {
            name: mean[name].double() - server.weights[name].double() for name in sorted(self.covered(mean))
        }
        for name, step in steps.items():
            memory[f"h/{name}"] = memory.get(f"h/{name}", torch.zeros_like(step)) - self.alpha * step
        size = _norm(memory[f"h/{name}"] for name in steps) / self.alpha
        limit = GUARD * _norm(steps.values())
        shrink = 1.0 if size <= limit else limit / size
        if shrink < 1:
            log.info("FedDyn: correction of norm %.3g cut to %.3g", size, limit)
        for name in steps:
            corrected = mean[name].double() - shrink * memory[f"h/{name}"] / self.alpha
            weights[name] = corrected.to(mean[name].dtype)
        return Server(weights, memory)

    def covered(self, weights: State) -> set[str]:
        """Return the parameters that are regularised: all, or all but those of normalisation layers.

        Server and clients know them by their shapes: the weight of a normalisation layer is a vector.
        """
        found = set()
        for name, tensor in weights.items():
            owner = name.rpartition(".")[0]
            norm = weights.get(f"{owner}.weight", tensor.new_zeros(1, 1)).dim() == 1
            buffer = not tensor.is_floating_point() or name.endswith(("running_mean", "running_var"))
            if not buffer and not (norm and self.exempt_norms):
                found.add(name)
        return found


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum((t.square().sum() for t in tensors), torch.zeros((), dtype=torch.float64)).sqrt())
