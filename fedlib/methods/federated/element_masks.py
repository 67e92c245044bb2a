"""Personal elements chosen by a score: the shared part of FedSelect and FedMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.model_state import State
from fedlib.federation.tasks import Task
from fedlib.methods.federated.fedavg import FedAvg, Local

LocalTraining = Literal["joint", "localalt", "localsim"]
KEPT = "elements/"  # prefix of the masks in the client's memory


@dataclass(frozen=True)
class ElementMasks(FedAvg):
    """In each round the elements with the highest scores become personal, and stay so, up to a final share.

    Attributes:
        select: share of all parameters that becomes personal in a round.
        final: largest personal share.
        warmup_rounds: first rounds that are FedAvg; None takes a quarter of ``total_rounds``.
        local: how clients train once they have personal elements. ``joint``: all at once. ``localalt``: first half
            of the steps on personal elements, second half on shared ones. ``localsim``: all at once, steps of
            shared elements times ``shared_scale`` (LocalAlt and LocalSim: Pillutla et al. 2022).
        shared_scale: see ``local``.
    """

    name: ClassVar[str] = "element_masks"

    select: float = 0.02
    final: float = 0.4
    warmup_rounds: int | None = None
    local: LocalTraining = "joint"
    shared_scale: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, ok, allowed in (
            ("select", 0 <= self.select <= 1, "0 to 1"),
            ("final", 0 <= self.final <= 1, "0 to 1"),
            ("warmup_rounds", self.warmup_rounds is None or self.warmup_rounds >= 0, "at least 0, or None"),
            ("local", self.local in get_args(LocalTraining), ", ".join(get_args(LocalTraining))),
            ("shared_scale", 0 <= self.shared_scale <= 1, "0 to 1"),
        ):
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    @property
    def warmup(self) -> int:
        """Number of first rounds without masks."""
        return self.total_rounds // 4 if self.warmup_rounds is None else self.warmup_rounds

    def scores(self, task: Task, local: Local) -> Tensor:
        """Return the score (P,) of each element; elements with 0 are never chosen."""
        raise NotImplementedError

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Return the elements that were personal before and the new ones."""
        if local.round <= self.warmup or not len(local.data):
            return super().masks(task, local)
        kept = self._kept(local)
        total = kept.numel()
        room = round(self.final * total) - int(kept.sum())
        count = max(min(round(self.select * total), room), 0)
        if count:
            scores = self.scores(task, local).masked_fill(kept, 0.0)
            # By index, not by ">= the k-th value", which would take all ties; stable, so ties go in order.
            order = torch.sort(scores, descending=True, stable=True).indices[:count]
            kept[order[scores[order] > 0]] = True
        masks = {
            name: mask.bool() for name, mask in local.model.named(kept.to(local.model.values.dtype)).items()
        }
        local.memory |= {KEPT + name: mask.clone() for name, mask in masks.items()}
        local.metrics["personal_share"] = float(kept.sum()) / total
        return super().masks(task, local) | {name: mask for name, mask in masks.items() if mask.any()}

    def step_scale(self, local: Local) -> Tensor | None:
        """Return the factors of LocalAlt or LocalSim once the client has personal elements."""
        if self.local == "joint" or not any(name.startswith(KEPT) for name in local.memory):
            return None
        kept = self._kept(local)
        if self.local == "localsim":
            return torch.where(kept, 1.0, self.shared_scale)
        first_half = local.steps < local.total_steps // 2
        return (kept if first_half else ~kept).to(local.model.values.dtype)

    def _kept(self, local: Local) -> Tensor:
        kept: State = {n.removeprefix(KEPT): t for n, t in local.memory.items() if n.startswith(KEPT)}
        if not kept:
            return torch.zeros_like(local.model.values, dtype=torch.bool)
        return local.model.vector_of(kept).bool()
