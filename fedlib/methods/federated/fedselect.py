"""FedSelect: the elements that training changes most become personal (Tamirisa et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlib.federation.tasks import Task
from fedlib.methods.federated.element_masks import ElementMasks
from fedlib.methods.federated.fedavg import Local


@dataclass(frozen=True)
class FedSelect(ElementMasks):
    """The score of an element is ``|w - G|``, with G the global model at the start of the round.

    The original compares with the client's own state at the last choice; the FedCKA authors' public code with G.
    """

    name: ClassVar[str] = "fedselect"

    def scores(self, task: Task, local: Local) -> Tensor:
        """Return ``|w - G|`` (P,)."""
        return (local.model.values - local.start).abs()
