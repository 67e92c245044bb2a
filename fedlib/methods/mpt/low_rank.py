"""The transport for long features: covariances as a few directions and one variance for all others.

Our extension, off by default. Sigma is taken as V diag(l) V^T + s2 (I - V V^T) with q directions, as in
probabilistic PCA (Tipping and Bishop 1999); a round then costs O(d q^2) instead of O(d^3), and the map is exact
for such covariances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.mpt import checks
from fedlib.methods.mpt.transport import Kind, eigen, transport_matrix


@dataclass(frozen=True)
class LowRank:
    """Sigma = V diag(l) V^T + s2 (I - V V^T).

    Attributes:
        directions: V, (d, q), orthonormal columns.
        variances: l, (q,), positive.
        rest: s2 > 0, the variance in all other directions.
    """

    directions: Tensor
    variances: Tensor
    rest: float

    def dense(self) -> Tensor:
        """Return Sigma, (d, d)."""
        d = len(self.directions)
        inside = self.directions * (self.variances - self.rest)
        return inside @ self.directions.T + self.rest * torch.eye(d, dtype=torch.float64)


def low_rank(covariance: Tensor, rank: int) -> LowRank:
    """Return the nearest covariance with ``rank`` directions of its own: s2 is the mean of the dropped
    eigenvalues.

    Args:
        covariance: Sigma, (d, d), positive definite (regularised).
        rank: q, 1 to d - 1.

    Raises:
        InputError: a rank out of range, or a covariance that is not positive definite.
    """
    sigma = checks.square("covariance", covariance)
    if not 1 <= rank < len(sigma):
        raise InputError(f"rank is {rank!r}; allowed: 1 to {len(sigma) - 1}")
    values, vectors = eigen(sigma)
    return LowRank(vectors[:, -rank:], values[-rank:], float(values[:-rank].mean()))


def transport_low_rank(kind: Kind, origin: LowRank, current: LowRank, v: Tensor) -> Tensor:
    """Return T v with T = B T_q B^T + sqrt(s2_t / s2_0) (I - B B^T), B an orthonormal basis of both V's.

    Args:
        kind: transport between the two covariances inside the span of B.
        origin: Sigma_0.
        current: Sigma_t, for features of the same length.
        v: (d,).

    Raises:
        InputError: covariances of different length.
    """
    d = len(origin.directions)
    if len(current.directions) != d:
        raise InputError(f"covariances are for {d} and {len(current.directions)} features; allowed: the same")
    v = checks.vector("vector", v, d)
    both = torch.linalg.svd(torch.cat([origin.directions, current.directions], dim=1), full_matrices=False)
    basis = both.U[:, both.S > 1e-10]  # without the directions that V_0 and V_t share
    inner = transport_matrix(kind, _inside(origin, basis), _inside(current, basis))
    part = basis.T @ v
    return basis @ (inner @ part) + (current.rest / origin.rest) ** 0.5 * (v - basis @ part)


def _inside(sigma: LowRank, basis: Tensor) -> Tensor:
    """Return B^T Sigma B without forming Sigma."""
    projected = basis.T @ sigma.directions
    inside = (projected * (sigma.variances - sigma.rest)) @ projected.T
    return inside + sigma.rest * torch.eye(basis.shape[1], dtype=torch.float64)
