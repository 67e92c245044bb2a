"""The classifier head on fixed features: it grows by rows as classes appear (section 3.4).

Rows belong to classes in the order in which these appeared; ``classes`` says which is which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.errors import InputError, choose
from fedlib.features.gaussian import SMALLEST_NORM
from fedlib.federation.model_state import State


class GrowingHead(nn.Module):
    """Logits of the classes seen so far.

        linear:  w_c^T z + b_c          cosine:  s cos(z, w_c) + b_c

    Args:
        dim: d.
        kind: ``linear`` or ``cosine``.
        scale: s of the cosine head.

    Attributes:
        classes: class of each row.
        weight: (rows, d).
        bias: (rows,).
    """

    def __init__(self, dim: int, kind: Literal["linear", "cosine"] = "linear", scale: float = 10.0) -> None:
        super().__init__()
        self.kind = choose("head", kind, ("linear", "cosine"))
        self.scale = scale
        self.classes: tuple[int, ...] = ()
        self.weight = nn.Parameter(torch.zeros(0, dim))
        self.bias = nn.Parameter(torch.zeros(0))

    def expand(self, classes: Sequence[int], weight: Tensor) -> None:
        """Add rows for new classes; old rows keep their bits. New biases are 0.

        Args:
            classes: of the new rows.
            weight: their initial weights, (len(classes), d).

        Raises:
            InputError: a class that has a row already, or weights of another shape.
        """
        old = set(self.classes)
        if old & set(classes) or len(set(classes)) < len(classes):
            raise InputError(f"new classes are {list(classes)}; allowed: each once, none of {sorted(old)}")
        if weight.shape != (len(classes), self.weight.shape[1]):
            raise InputError(
                f"new rows have shape {tuple(weight.shape)}; allowed: {(len(classes), self.weight.shape[1])}"
            )
        with torch.no_grad():
            rows = torch.cat([self.weight, weight.to(self.weight)])
            bias = torch.cat([self.bias, self.bias.new_zeros(len(classes))])
        self.weight, self.bias = nn.Parameter(rows), nn.Parameter(bias)
        self.classes = (*self.classes, *classes)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits (B, rows) of features (B, d)."""
        if self.kind == "linear":
            return functional.linear(z, self.weight, self.bias)
        unit = functional.normalize(z, dim=1, eps=SMALLEST_NORM)
        rows = functional.normalize(self.weight, dim=1, eps=SMALLEST_NORM)
        return functional.linear(self.scale * unit, rows, self.bias)

    def rows_of(self, labels: Tensor) -> Tensor:
        """Return the rows of class labels (N,) int64.

        Raises:
            InputError: a label without a row.
        """
        table = torch.full((max(self.classes, default=-1) + 1,), -1)
        table[list(self.classes)] = torch.arange(len(self.classes))
        known = len(labels) == 0 or 0 <= int(labels.min()) <= int(labels.max()) < len(table)
        rows = table[labels] if known else labels.new_tensor([-1])
        if (rows < 0).any():
            raise InputError(f"labels {labels.unique().tolist()}; allowed: {sorted(self.classes)}")
        return rows

    def to_tensors(self) -> State:
        """Return ``classes`` int64 (rows,), ``weight`` and ``bias``, copied, on the CPU."""
        return {
            "classes": torch.tensor(self.classes, dtype=torch.int64),
            "weight": self.weight.detach().cpu().clone(),
            "bias": self.bias.detach().cpu().clone(),
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], kind: Literal["linear", "cosine"] = "linear", scale: float = 10.0
    ) -> GrowingHead:
        """Undo :meth:`to_tensors`."""
        head = cls(tensors["weight"].shape[1], kind, scale)
        head.expand(tensors["classes"].tolist(), tensors["weight"])
        with torch.no_grad():
            head.bias.copy_(tensors["bias"])
        return head


def kd_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the mean over samples of KL(softmax(teacher / T) || softmax(student / T)), ().

    Hinton et al. 2014; the factor T^2 is that of the code.

    Args:
        student: logits, (B, C).
        teacher: logits, (B, C).
        temperature: T > 0.
    """
    log_student = functional.log_softmax(student / temperature, dim=1)
    log_teacher = functional.log_softmax(teacher / temperature, dim=1)
    kl = functional.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * kl
