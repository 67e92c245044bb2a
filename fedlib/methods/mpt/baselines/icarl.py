"""iCaRL on vehicles (Rebuffi et al. 2017): exemplars that stay where they are, and the mean of their features.

Exemplars never leave a vehicle, but it must store them. Every vehicle keeps, at the departure, all its samples
of the rare class and up to m of each other class, chosen by herding. Each round the mean of exemplars, all
features at length one, is a class's prototype (nearest mean of exemplars). With distillation the vehicles also
train on the exemplars and keep the outputs near those of the model of the departure; that is another
trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fedlib.errors import InputError
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local

EXEMPLARS = 20  # for each class of a vehicle; our choice


def unit(features: Tensor) -> Tensor:
    """Return features (n, d) scaled to length one, float64; zero stays zero."""
    z = features.double()
    return z / z.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def herding(features: Tensor, m: int) -> Tensor:
    """Choose samples whose running mean stays nearest to the mean of all (Rebuffi et al., algorithm 4).

    Args:
        features: (n, d), scaled to length one here.
        m: number to choose; at most n are.

    Returns:
        Their indices in the order of choice, int64 (min(m, n),); a shorter choice is a prefix of a longer one.

    Raises:
        InputError: m below 1.
    """
    if m < 1:
        raise InputError(f"number of exemplars is {m!r}; allowed: at least 1")
    z = unit(features)
    mean = z.mean(dim=0) if len(z) else z.new_zeros(z.shape[1])
    chosen: list[int] = []
    total = torch.zeros_like(mean)
    free = torch.ones(len(z), dtype=torch.bool)
    for j in range(min(m, len(z))):
        # p_j = argmin_x || mu - (phi(x) + sum of chosen) / (j + 1) ||
        distance = (mean - (z + total) / (j + 1)).square().sum(dim=1)
        best = int(distance.masked_fill(~free, float("inf")).argmin())
        chosen.append(best)
        free[best] = False
        total = total + z[best]
    return torch.tensor(chosen, dtype=torch.int64)


@dataclass(frozen=True)
class Distillation(FedAvg):
    """FedAvg whose clients distil from the global model of the departure (iCaRL's second loss).

    Loss after round ``departure``: cross-entropy + sum_y BCE(sigmoid f_y(x), sigmoid f_y^{t0}(x)), mean over
    samples.

    Attributes:
        departure: t0, last round before the departure; the model that is broadcast in round t0 + 1 is the old
            one.
    """

    name: ClassVar[str] = "icarl"

    departure: int = 1

    def loss(self, task: Task, local: Local, batch: Any) -> Tensor:
        """Return the local training loss () of a batch of images (B, C, H, W) and labels (B,)."""
        loss = super().loss(task, local, batch)
        if local.round <= self.departure:
            return loss
        if local.round == self.departure + 1:
            for name, tensor in local.broadcast.weights.items():
                local.memory.setdefault(f"old/{name}", tensor.clone())
        old = {
            name.removeprefix("old/"): tensor.to(loss.device)
            for name, tensor in local.memory.items()
            if name.startswith("old/")
        }
        module, images = local.model.module, batch[0]
        was_training = [layer.training for layer in module.modules()]
        module.eval()
        with torch.no_grad():
            targets = torch.sigmoid(functional_call(module, old, (images,)).float())
        for layer, training in zip(module.modules(), was_training, strict=True):
            layer.training = training
        logits = module(images).float()
        return loss + functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(
            images
        )
