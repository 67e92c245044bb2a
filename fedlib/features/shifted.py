"""Class moments as plain sums, for secure aggregation: the server sees the sum over clients and no single term.

Sums of z z^T cancel badly when means are large beside the spread, so all clients subtract the same reference nu_c
first, for example the prototypes of the last round:

    s_c = sum_i (z_i - nu_c),   S = sum_c sum_i (z_i - nu_c)(z_i - nu_c)^T        over the samples i of class c
    delta_c = s_c / n_c,   mu_c = nu_c + delta_c,   W = S - sum_c n_c delta_c delta_c^T        at the server

Every message has the same shape, whatever classes a client holds, as masking needs it. Letters as in
:mod:`fedlib.features.moments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from fedlib.errors import InputError
from fedlib.features import symmetric
from fedlib.features.moments import ClassMoments, checked_batch


class ShiftedSums:
    """Sums of a client's features around a common reference.

    Args:
        reference: nu_c, (C, d); the same at all clients.
        leave_out: classes that do not enter S, as in :class:`ClassMoments`.

    Attributes:
        count: n_c, float64 (C,), whole numbers.
        first: s_c, float64 (C, d).
        second: S, float64 (d, d).
    """

    def __init__(self, reference: torch.Tensor, *, leave_out: Iterable[int] = ()) -> None:
        if reference.ndim != 2 or not torch.isfinite(reference).all():
            raise InputError(f"reference has shape {tuple(reference.shape)}; allowed: finite values (C, d)")
        self.reference = reference.detach().to("cpu", torch.float64)
        empty = ClassMoments(*reference.shape, leave_out=leave_out)
        self.pooled = empty.pooled
        self.count = empty.count.double()
        self.first = torch.zeros_like(empty.mean)
        self.second = torch.zeros(empty.dim, empty.dim, dtype=torch.float64)

    def update(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a batch: features (B, d), labels int64 (B,).

        Raises:
            InputError: as :meth:`ClassMoments.update`.
        """
        z, y = checked_batch(features, labels, *self.first.shape)
        shifted = z - self.reference[y]
        self.count += torch.bincount(y, minlength=len(self.count))
        self.first.index_add_(0, y, shifted)
        shifted = shifted[self.pooled[y]]
        self.second += shifted.T @ shifted

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """Return the message: ``count`` (C,), ``first`` (C, d), ``second`` (d(d + 1)/2,), all float64."""
        return {"count": self.count, "first": self.first, "second": symmetric.pack(self.second)}

    def moments_of_sum(self, messages: Sequence[Mapping[str, torch.Tensor]]) -> ClassMoments:
        """Add the clients' messages up and return the moments of all their samples.

        Args:
            messages: of clients with the same reference and pooling as this object.

        Raises:
            InputError: no messages, or one of another shape.
        """
        own = self.to_tensors()
        for message in messages:
            shapes = {key: tuple(tensor.shape) for key, tensor in message.items()}
            if shapes != (wanted := {key: tuple(tensor.shape) for key, tensor in own.items()}):
                raise InputError(f"message has shapes {shapes}; allowed: {wanted}")
        if not messages:
            raise InputError("nothing to add up; allowed: at least one message")
        total = {key: torch.stack([message[key].double() for message in messages]).sum(dim=0) for key in own}
        moments = ClassMoments(*self.first.shape)
        moments.pooled = self.pooled.clone()
        moments.count = total["count"].round().long()
        n = moments.count[:, None]
        delta = total["first"] / n.clamp(min=1)
        moments.mean = torch.where(n > 0, self.reference + delta, 0.0)
        weight = n * self.pooled[:, None]
        scatter = symmetric.unpack(total["second"]) - delta.T @ (weight * delta)
        moments.scatter = (scatter + scatter.T) / 2
        return moments
