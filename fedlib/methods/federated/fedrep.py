"""FedRep: a shared body and personal heads, trained one after the other (Collins et al. 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local

Phases = Literal["alternating", "joint"]


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Heads never leave the clients; the body is averaged.

    Attributes:
        head: prefixes of the names of the head's tensors.
        phases: ``alternating``: the first half of a round's steps trains the head with the body fixed (its
            BatchNorm statistics too), the second half the body with the head fixed, so the number of steps is that
            of the other methods. ``joint``: all at once (FedPer's schedule; Arivazhagan et al. 2019).
        joint_rounds: first rounds that are joint; with a random body the head has nothing to learn from.
    """

    name: ClassVar[str] = "fedrep"

    head: tuple[str, ...] = ("head.",)
    phases: Phases = "alternating"
    joint_rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phases not in get_args(Phases):
            raise InputError(f"phases is {self.phases!r}; allowed: {', '.join(get_args(Phases))}")
        if self.joint_rounds < 0:
            raise InputError(f"joint_rounds is {self.joint_rounds}; allowed: at least 0")

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Return the tensors of the head.

        Raises:
            InputError: if no tensor has a name that starts with one of ``head``.
        """
        names = [name for name in local.model.module.state_dict() if name.startswith(self.head)]
        if not names:
            raise InputError(f"head is {self.head}; allowed: prefixes of the model's tensor names")
        return {name: torch.tensor(True) for name in names}

    def step_scale(self, local: Local) -> Tensor | None:
        """Return 1 for the parameters of the phase and 0 for the others."""
        if not self._alternates(local):
            return None
        scale = torch.zeros_like(local.model.values)
        head_phase = self._head_phase(local)
        for name in local.model.trainable():
            if name.startswith(self.head) == head_phase:
                local.model.view(scale, name).fill_(1.0)
        return scale

    def batch_statistics(self, local: Local) -> bool:
        """Return False while the body is fixed."""
        fixed = self._alternates(local) and self._head_phase(local)
        return super().batch_statistics(local) and not fixed

    def _alternates(self, local: Local) -> bool:
        return self.phases == "alternating" and local.round > self.joint_rounds

    def _head_phase(self, local: Local) -> bool:
        return local.steps < local.total_steps // 2
