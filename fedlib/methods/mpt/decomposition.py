"""What is stored at the departure: the rare prototype as an affine combination of the others, plus a residual.

Jang et al. 2026, section IV-C-1, in the centred form that follows from it: with Pc = P - mubar 1^T, mubar = P
1/M,

    minimise_w  ||p - P w||^2 + lambda ||w||^2   subject to   1^T w = 1.

Weights that sum to one make the relationship blind to a common shift of all prototypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedlib.errors import InputError, choose
from fedlib.methods.mpt import checks

Complement = Literal["soft", "hard"]
RANK_TOLERANCE = 1e-10  # singular values below this share of the largest count as zero when there is no ridge
HARD_TOLERANCE = 1e-6  # the same for the orthogonal projector of the hard complement


@dataclass(frozen=True)
class Decomposition:
    """p = P w + e.

    Attributes:
        weights: w, (M,), sums to one.
        residual: e, (d,), the part that the affine combination does not explain.
        ridge: lambda.
    """

    weights: Tensor
    residual: Tensor
    ridge: float


def ridge_of(prototypes: Tensor, lambda_rel: float) -> float:
    """Return lambda = lambda_rel tr(Pc^T Pc) / (M - 1), the mean eigenvalue on the centred span; 0 for M = 1.

    Args:
        prototypes: P, (d, M).
        lambda_rel: relative size of the ridge, >= 0.
    """
    centred, _ = _centre(checks.matrix("prototypes", prototypes))
    checks.at_least("lambda_rel", lambda_rel, 0)
    # lambda = lambda_rel * tr(Pc^T Pc) / (M - 1)                                                          (3.5)
    return lambda_rel * float(centred.square().sum()) / max(1, centred.shape[1] - 1)


def decompose(
    prototypes: Tensor, prototype: Tensor, lambda_rel: float, metric: Tensor | None = None
) -> Decomposition:
    """Split the rare prototype into an affine combination of the others and a residual.

    Args:
        prototypes: P, (d, M), of the remaining classes in a fixed order; M >= 1.
        prototype: p, (d,), of the rare class.
        lambda_rel: ridge relative to the spread of P, >= 0; 0 gives the minimum-norm affine projection.
        metric: S, (d, d), positive definite: fit the weights in the Mahalanobis distance of S (our extension);
            None takes the Euclidean one. The residual is in the features' own units in both cases.

    Raises:
        InputError: shapes that do not fit, values that are not finite, a negative ridge, or a metric that is not
            positive definite.
    """
    P = checks.matrix("prototypes", prototypes)
    p = checks.vector("prototype", prototype, P.shape[0])
    fitted, target = P, p
    if metric is not None:
        # L^-1 P and L^-1 p with S = L L^T in place of P and p, in (3.3) and (3.5) only
        both = _whiten(checks.square("metric", metric, P.shape[0]), torch.cat([P, p[:, None]], dim=1))
        fitted, target = both[:, :-1], both[:, -1]
    ridge = ridge_of(fitted, lambda_rel)
    centred, mean = _centre(fitted)
    # w = 1/M + (Pc^T Pc + lambda I)^-1 Pc^T (p - mubar)   (3.3)
    weights = 1 / P.shape[1] + _solver(centred, ridge)((target - mean)[:, None])[:, 0]
    # e0 = p - P w, which is C_lambda (p - mubar) for the Euclidean fit   (3.4)
    return Decomposition(weights, p - P @ weights, ridge)


def complement(prototypes: Tensor, v: Tensor, lambda_rel: float, kind: Complement = "soft") -> Tensor:
    """Apply the complement of the affine span of the prototypes to vectors that start at its mean.

    ``soft``: C_lambda = I - Pc (Pc^T Pc + lambda I)^-1 Pc^T, the map that makes the residual at the departure;
    its eigenvalues are in (0, 1]. ``hard``: the orthogonal projector onto the complement of the span; with it
    the ridge's in-span bias P w - proj(p) is lost when only the measured residual counts.

    Args:
        prototypes: P, (d, M).
        v: (d,) or (d, n); differences to mubar.
        lambda_rel: as in :func:`decompose`; the hard complement does not use it.
        kind: ``soft`` or ``hard``.

    Returns:
        The shape of ``v``.

    Raises:
        InputError: shapes that do not fit, or an unknown kind.
    """
    choose("complement", kind, get_args(Complement))
    P = checks.matrix("prototypes", prototypes)
    columns = checks.matrix("vectors", v[:, None] if v.ndim == 1 else v, rows=P.shape[0])
    centred, _ = _centre(P)
    if kind == "soft":
        # C_lambda v = v - Pc (Pc^T Pc + lambda I)^-1 Pc^T v   (3.4)
        result = columns - centred @ _solver(centred, ridge_of(P, lambda_rel))(columns)
    else:
        # (I - Q Q^T) v, Q an orthonormal basis of the columns of Pc
        q, singular, _ = torch.linalg.svd(centred, full_matrices=False)
        q = q[:, singular > HARD_TOLERANCE * singular.max().clamp(min=torch.finfo(torch.float64).tiny)]
        result = columns - q @ (q.T @ columns)
    return result[:, 0] if v.ndim == 1 else result


def _whiten(metric: Tensor, columns: Tensor) -> Tensor:
    """Return L^-1 columns with metric = L L^T."""
    factor, failed = torch.linalg.cholesky_ex(metric)
    if failed:
        raise InputError("metric is not positive definite; regularise it with rho > 0")
    return torch.linalg.solve_triangular(factor, columns, upper=False)


def _centre(P: Tensor) -> tuple[Tensor, Tensor]:
    """Return Pc (d, M) and mubar (d,)."""
    mean = P.mean(dim=1)
    return P - mean[:, None], mean


def _solver(centred: Tensor, ridge: float) -> Callable[[Tensor], Tensor]:
    """Return the map v -> (Pc^T Pc + lambda I)^-1 Pc^T v on columns (d, n) -> (M, n)."""
    if ridge == 0:
        inverse = torch.linalg.pinv(centred, rtol=RANK_TOLERANCE)  # the minimum-norm solution
        return lambda v: inverse @ v
    size = centred.shape[1]
    factor = torch.linalg.cholesky(centred.T @ centred + ridge * torch.eye(size, dtype=torch.float64))
    return lambda v: torch.cholesky_solve(centred.T @ v, factor)
