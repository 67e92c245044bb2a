"""iCaRL on vehicles (Rebuffi et al. 2017): exemplars that stay where they are, and the mean of their features.

Exemplars never leave a vehicle, but it must store them. Every vehicle keeps, at the departure, all its samples
of the rare class and up to m of each other class, chosen by herding. Each round the mean of exemplars, all
features at length one, is a class's prototype (nearest mean of exemplars). With distillation the vehicles also
train on the exemplars and keep the outputs near those of the model of the departure; that is another
trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fedlib.errors import InputError
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle

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


class ICaRLTracker(Tracker):
    """Nearest mean of exemplars that stay on the vehicles."""

    name: ClassVar[str] = "icarl"
    native: ClassVar[Native] = "cosine"
    sends_means: ClassVar[bool] = False  # the means of its exemplars instead
    compensates: ClassVar[str] = "partial"
    aggregates = False

    def __init__(self, exemplars: int) -> None:
        self.exemplars = exemplars
        self.rare: int | None = None

    def keep(self, vehicle: Vehicle) -> State:
        """Return the exemplars (indices into the vehicle's samples): all of the rare class, m of each other."""
        assert self.rare is not None
        chosen = []
        for label in torch.nonzero(vehicle.moments.count).flatten().tolist():
            own = torch.nonzero(vehicle.labels == label).flatten()
            size = len(own) if label == self.rare else self.exemplars
            chosen.append(own[herding(vehicle.features[own], size)])
        return {"exemplars": torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return mean and number of the exemplars' unit features for each class that the vehicle holds."""
        if "exemplars" not in kept:
            return {}
        rows = kept["exemplars"]
        z, y = unit(vehicle.features[rows]), vehicle.labels[rows]
        count = torch.bincount(y, minlength=vehicle.moments.num_classes)
        total = torch.zeros(len(count), z.shape[1], dtype=torch.float64).index_add_(0, y, z)
        held = torch.nonzero(count).flatten()
        return {
            "class_ids": held.int(),
            "count": count[held].int(),
            "mean": (total[held] / count[held, None]).float(),
        }

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Remember the rare class; from now on the vehicles keep exemplars."""
        self.rare = everyone.rare_class
        self.last = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the exemplars' means, weighted over vehicles, and the mean of the remaining rare samples."""
        total = torch.zeros_like(server.means)
        for message in sent:
            ids, count = message["class_ids"].long(), message["count"].double()
            total[ids] += count[:, None] * message["mean"].double()
        if server.count:
            self.last = server.rare_mean.clone()
        empty = total.abs().sum(dim=1) == 0
        means = torch.where(empty[:, None], torch.nan, total)  # CosineNCM scales to length one
        return Outcome(prototype=self.last, means=means)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1): the exemplars' means instead of the class means."""
        return classes * (dim + 1)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C d."""
        return classes * dim
