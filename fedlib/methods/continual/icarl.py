"""iCaRL (Rebuffi et al., CVPR 2017): exemplars, distillation, and the nearest mean of exemplars."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.errors import InputError, choose
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.exemplars import Rehearsal
from fedlib.methods.continual.strategy import Context, embedded, non_negative
from fedlib.methods.mpt.baselines.icarl import unit


def means_of_exemplars(z: Tensor, labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return mbar_c, the mean of a class's features at length one, itself scaled to length one; float64 (C, d).

    Args:
        z: features of the exemplars, (n, d).
        labels: their classes (n,).
        classes: which, in order; each has an exemplar.
    """
    scaled = unit(z)
    return unit(torch.stack([scaled[labels == c].mean(0) for c in classes]))


@dataclass(kw_only=True)
class ICaRL(Rehearsal):
    """Loss CE over all seen classes + lambda sum_{old y} BCE(sigmoid f_y, sigmoid f_y^old).

    Attributes:
        strength: lambda.
        predict_with: ``nme`` the nearest mean of exemplars, or the ``head``.
    """

    label: ClassVar[str] = "iCaRL"

    strength: float = 1.0
    predict_with: Literal["nme", "head"] = "nme"

    means: Tensor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose("predict_with", self.predict_with, ("nme", "head"))
        non_negative(strength=self.strength)
        super().__post_init__()

    def fewest(self) -> int:
        """The nearest mean needs exemplars, the head does not."""
        return 1 if self.predict_with == "nme" else 0

    def start(self, context: Context) -> None:
        """Begin without exemplars."""
        super().start(context)
        self.means = None

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, from the second task on with the distillation."""
        logits = self.net(x)
        loss = self.cross_entropy(logits, y)
        if self.teacher is None:
            return loss
        with torch.no_grad():
            targets = torch.sigmoid(self.teacher(x))
        old = logits[:, : targets.shape[1]]
        # sum over old classes, mean over samples
        distilled = functional.binary_cross_entropy_with_logits(old, targets, reduction="sum") / len(x)
        return loss + self.strength * distilled

    def end_task(self, data: ImageData) -> None:
        """Choose exemplars and measure their means with the present network."""
        super().end_task(data)
        if self.exemplars:
            chosen = self.memory.data()
            self.means = means_of_exemplars(
                embedded(self.net, chosen), torch.from_numpy(chosen.labels), self.net.head.classes
            )

    def scores(self, x: Tensor) -> Tensor:
        """Return minus the distances to the means of exemplars, or the head's logits.

        Raises:
            InputError: there are no exemplars yet.
        """
        if self.predict_with == "head":
            return super().scores(x)
        if self.means is None or len(self.means) != self.seen:
            raise InputError("the classes have 0 exemplars yet; allowed: a prediction after end_task")
        # argmin_c || z / ||z|| - mbar_c ||
        return -torch.cdist(unit(self.net.features(x)), self.means)
