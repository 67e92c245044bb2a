"""FedMC: the elements with the largest Fisher information become personal (Gao, He and Chen 2025).

No public code exists; the description that is known: Fisher information from gradient magnitudes identifies the
most sensitive parameters. All else is our reading, the same as FedSelect's so that only the criterion differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.tasks import Task, batches
from fedlib.methods.federated.element_masks import ElementMasks
from fedlib.methods.federated.fedavg import Local


@dataclass(frozen=True)
class FedMC(ElementMasks):
    """The score is the diagonal of the empirical Fisher information, F = mean_b (d loss_b / d w)^2.

    Attributes:
        fisher_batches: largest number of training batches that it is estimated from.
        per_sample: batches of one sample, so that squares are taken sample by sample.
    """

    name: ClassVar[str] = "fedmc"

    fisher_batches: int = 100
    per_sample: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fisher_batches < 1:
            raise InputError(f"fisher_batches is {self.fisher_batches}; allowed: at least 1")

    def scores(self, task: Task, local: Local) -> Tensor:
        """Return F (P,). The model and its BatchNorm statistics do not change."""
        model = local.model
        total, count = torch.zeros_like(model.values), 0
        model.module.eval()
        order = seeds.torch_generator(local.seed, "fisher", local.round, local.client)
        with seeds.torch_global(local.seed, "fisher-loss", local.round, local.client):
            for batch, _ in batches(local.data, 1 if self.per_sample else self.batch_size, order):
                if count == self.fisher_batches:
                    break
                model.grad.zero_()
                self.loss(task, local, batch).backward()
                total += model.grad.square()
                count += 1
        model.grad.zero_()
        return total / count
