"""FedProx: FedAvg with a proximal term that keeps clients near the global model (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedlib.errors import InputError
from fedlib.methods.federated.fedavg import FedAvg, Local


@dataclass(frozen=True)
class FedProx(FedAvg):
    """The local objective is F_k(w) + mu/2 ||w - w_t||^2 (Li et al. 2020, equation 2).

    Attributes:
        mu: weight of the proximal term; 0 is FedAvg, bit for bit.
    """

    name: ClassVar[str] = "fedprox"

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise InputError(f"mu is {self.mu!r}; allowed: at least 0")

    def correct_gradient(self, local: Local) -> None:
        """Add the proximal term's gradient mu (w - w_t)."""
        if self.mu:
            local.model.grad.add_(local.model.values - local.start, alpha=self.mu)
