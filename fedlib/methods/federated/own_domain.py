"""Training alone: every client keeps its whole model, and nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedlib.federation import masks as personal
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local


@dataclass(frozen=True)
class OwnDomain(FedAvg):
    """The lower reference of personalised methods: the same local training, no communication."""

    name: ClassVar[str] = "own_domain"

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Return all tensors."""
        return {name: torch.tensor(True) for name in local.model.module.state_dict()}
