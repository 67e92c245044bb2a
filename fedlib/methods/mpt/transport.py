"""Prediction of the residual: the stored one, moved as the covariance of the remaining classes moved.

Jang et al. 2026, section IV-C-2: the residual is transported "according to changes in remaining-class
covariance", in scale and orientation. All linear maps with T Sigma_0 T^T = Sigma_t are Sigma_t^1/2 Q
Sigma_0^-1/2 with orthogonal Q; the summary does not say which one the paper takes. Both covariances here are
regularised (``fedlib.features.ncm.regularise``).

===========  ==================================================================  ==================================
kind         T                                                                   what it keeps
===========  ==================================================================  ==================================
``ot``       Sigma_0^-1/2 (Sigma_0^1/2 Sigma_t Sigma_0^1/2)^1/2 Sigma_0^-1/2     symmetric; moves features least
``zca``      Sigma_t^1/2 Sigma_0^-1/2                                            whiten, then colour
``chol``     L_t L_0^-1                                                          depends on the order of features
``pca``      U_t Lam_t^1/2 Lam_0^-1/2 U_0^T, eigenvectors matched                unstable for close eigenvalues
``scalar``   sqrt(tr Sigma_t / tr Sigma_0) I                                     scale only
``none``     I                                                                   nothing moves (static residual)
===========  ==================================================================  ==================================

``ot`` is the optimal transport map between N(0, Sigma_0) and N(0, Sigma_t) (Olkin and Pukelsheim 1982; Gelbrich
1990): the only one that is symmetric and positive, and therefore exact when the true drift is. No rule that
sees covariances only can notice a rotation of isotropic features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal, lapack
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedlib.errors import InputError, choose
from fedlib.methods.mpt import checks

Kind = Literal["ot", "zca", "chol", "pca", "scalar", "none"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Origin:
    """What the server keeps of Sigma_0: d^2 + d numbers.

    Attributes:
        kind: which transport.
        covariance: Sigma_0, (d, d), regularised.
        factor: L_0 (d, d) for ``ot`` and ``chol``, U_0 (d, d) for ``zca`` and ``pca``, else empty.
        eigenvalues: of Sigma_0, (d,), for ``zca`` and ``pca``, else empty.
    """

    kind: Kind
    covariance: Tensor
    factor: Tensor
    eigenvalues: Tensor


def prepare(kind: Kind, covariance: Tensor) -> Origin:
    """Store the covariance of the departure.

    Args:
        kind: one of ``KINDS``.
        covariance: Sigma_0, (d, d), positive definite.

    Raises:
        InputError: unknown kind, or a covariance that is not positive definite.
    """
    choose("transport", kind, KINDS)
    sigma = checks.square("covariance", covariance)
    empty = torch.empty(0, dtype=torch.float64)
    if kind in ("ot", "chol"):
        return Origin(kind, sigma, cholesky(sigma), empty)
    if kind in ("zca", "pca"):
        values, vectors = eigen(sigma)
        return Origin(kind, sigma, vectors, values)
    return Origin(kind, sigma, empty, empty)


def transport(origin: Origin, covariance: Tensor, v: Tensor) -> Tensor:
    """Return T v.

    One eigendecomposition of a d x d matrix for ``zca`` and ``pca``; of a tridiagonal one for ``ot``.

    Args:
        origin: of :func:`prepare`.
        covariance: Sigma_t, (d, d), positive definite.
        v: (d,) or (d, n).

    Raises:
        InputError: shapes that do not fit, or a covariance that is not positive definite.
    """
    d = len(origin.covariance)
    sigma = checks.square("covariance", covariance, d)
    columns = checks.matrix("vectors", v[:, None] if v.ndim == 1 else v, rows=d)
    moved = _APPLY[origin.kind](origin, sigma, columns)
    return moved[:, 0] if v.ndim == 1 else moved


def transport_matrix(kind: Kind, sigma_0: Tensor, sigma_t: Tensor) -> Tensor:
    """Return T, (d, d): for pictures and proofs; the method itself never forms it."""
    return transport(prepare(kind, sigma_0), sigma_t, torch.eye(len(sigma_0), dtype=torch.float64))


def bures(sigma_0: Tensor, sigma_t: Tensor) -> float:
    """Return how far the covariance moved: tr(Sigma_0 + Sigma_t) - 2 tr (Sigma_0^1/2 Sigma_t Sigma_0^1/2)^1/2.

    The squared Bures distance: the mean squared movement that optimal transport needs. Both covariances (d, d).
    """
    a, b = checks.square("covariance", sigma_0), checks.square("covariance", sigma_t, len(sigma_0))
    factor = cholesky(a)
    # L^T Sigma_t L has the eigenvalues of Sigma_0^1/2 Sigma_t Sigma_0^1/2
    roots = torch.linalg.eigvalsh(_symmetric(factor.T @ b @ factor)).clamp(min=0).sqrt()
    return max(0.0, float(a.trace() + b.trace() - 2 * roots.sum()))


def cholesky(sigma: Tensor) -> Tensor:
    """Return L, lower triangular, with L L^T = Sigma.

    Raises:
        InputError: not positive definite.
    """
    factor, failed = torch.linalg.cholesky_ex(sigma)
    if failed:
        raise InputError("covariance is not positive definite; regularise it with rho > 0")
    return factor


def eigen(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (d,), ascending, and eigenvectors (d, d) as columns.

    Raises:
        InputError: an eigenvalue that is not positive.
    """
    values, vectors = torch.linalg.eigh(sigma)
    if values[0] <= 0:
        raise InputError("covariance is not positive definite; regularise it with rho > 0")
    return values, vectors


def _ot(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    # T = L^-T (L^T Sigma_t L)^1/2 L^-1 with Sigma_0 = L L^T: the same map from one Cholesky factor
    factor = origin.factor
    product, _ = lapack.dsygst(sigma.numpy(), factor.numpy(), itype=2, lower=1)  # L^T Sigma_t L, lower part
    white = torch.linalg.solve_triangular(factor, v, upper=False)
    root = _root_times(product, white)
    return torch.linalg.solve_triangular(factor.T, root, upper=True)


def _root_times(product: np.ndarray, v: Tensor) -> Tensor:
    """Return A^1/2 v for a symmetric positive A (d, d), of which the lower triangle is read.

    A = Q T Q^T with tridiagonal T: only T's eigenvectors are computed, never A's, which halves the time.
    """
    d = len(product)
    if d == 1:  # nothing to make tridiagonal, and LAPACK's wrappers refuse empty arrays
        return v * float(product[0, 0]) ** 0.5
    packed, diagonal, beside, tau, _ = lapack.dsytrd(product, lower=1, lwork=64 * d, overwrite_a=1)
    values, vectors = eigh_tridiagonal(diagonal, beside, check_finite=False, lapack_driver="stevd")
    # Q acts on all coordinates but the first; its reflectors lie below the first subdiagonal
    columns = v.numpy().copy()
    columns[1:] = _reflect(packed, tau, columns[1:], "T")
    columns = vectors @ (np.sqrt(values.clip(min=0))[:, None] * (vectors.T @ columns))
    columns[1:] = _reflect(packed, tau, columns[1:], "N")
    return torch.from_numpy(columns)


def _reflect(packed: np.ndarray, tau: np.ndarray, columns: np.ndarray, transposed: str) -> np.ndarray:
    """Return Q v or Q^T v with the reflectors that LAPACK's ``dsytrd`` leaves."""
    turned, _, _ = lapack.dormqr("L", transposed, packed[1:, :-1], tau, columns, lwork=64 * columns.shape[1])
    return np.asarray(turned)


def _zca(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    # T = Sigma_t^1/2 Sigma_0^-1/2
    values, vectors = eigen(sigma)
    white = origin.factor @ ((origin.factor.T @ v) / origin.eigenvalues.sqrt()[:, None])
    return vectors @ (values.sqrt()[:, None] * (vectors.T @ white))


def _chol(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    # T = L_t L_0^-1
    return cholesky(sigma) @ torch.linalg.solve_triangular(origin.factor, v, upper=False)


def _pca(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    # T = U_t Lam_t^1/2 Lam_0^-1/2 U_0^T, columns of U_t matched to those of U_0 and turned to the same side
    values, vectors = eigen(sigma)
    overlap = vectors.T @ origin.factor
    rows, columns = linear_sum_assignment(overlap.abs().numpy(), maximize=True)
    order = torch.empty(len(values), dtype=torch.int64)
    order[torch.as_tensor(columns)] = torch.as_tensor(rows)
    signs = torch.where(overlap[order, torch.arange(len(order))] < 0, -1.0, 1.0).double()
    scale = (values[order] / origin.eigenvalues).sqrt() * signs
    return vectors[:, order] @ (scale[:, None] * (origin.factor.T @ v))


def _scalar(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    # T = sqrt(tr Sigma_t / tr Sigma_0) I
    return (sigma.trace() / origin.covariance.trace()).sqrt() * v


def _none(origin: Origin, sigma: Tensor, v: Tensor) -> Tensor:
    return v.clone()


_APPLY: dict[str, Callable[[Origin, Tensor, Tensor], Tensor]] = {
    "ot": _ot, "zca": _zca, "chol": _chol, "pca": _pca, "scalar": _scalar, "none": _none,
}  # fmt: skip


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2
