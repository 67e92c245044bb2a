"""FedBN: every client keeps its own BatchNorm layers (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fedlib.federation import masks as personal
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local


@dataclass(frozen=True)
class FedBN(FedAvg):
    """The affine parameters and running statistics of BatchNorm layers are personal, all else is shared.

    Attributes:
        all_norms: LayerNorm and GroupNorm layers too; an option of ours, not in the paper.
    """

    name: ClassVar[str] = "fedbn"

    all_norms: bool = False

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Return the tensors of all normalisation layers."""
        kinds: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._BatchNorm,)
        if self.all_norms:
            kinds += (nn.LayerNorm, nn.GroupNorm)
        return {
            f"{prefix}.{name}" if prefix else name: torch.tensor(True)
            for prefix, layer in local.model.module.named_modules()
            if isinstance(layer, kinds)
            for name in layer.state_dict()
        }
