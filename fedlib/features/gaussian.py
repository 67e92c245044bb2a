"""Gaussians of classes and their mixtures: what clients send in VCL-FPFT and what the server draws from.

A covariance is kept as its lower Cholesky factor L, Sigma = L L^T, because drawing needs L and nothing else.
Letters: d feature length, n draws, K components.

Source: VCL-FPFT (Barros et al., IJCAI 2026), sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.errors import InputError

RETRIES = 5  # of the Cholesky factorisation, each with ten times the jitter
JITTER = 1e-6  # of the mean variance, at the first retry
SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class ClassGaussian:
    """N(mean, tril tril^T), estimated from ``count`` samples.

    Attributes:
        mean: (d,), floating.
        tril: (d, d), floating; lower triangular with a positive diagonal.
        count: samples behind it, >= 1.

    Raises:
        InputError: shapes that do not fit, values that are not finite, a diagonal or a count not above 0.
    """

    mean: Tensor
    tril: Tensor
    count: int

    def __post_init__(self) -> None:
        d = len(self.mean)
        if self.mean.dim() != 1 or self.tril.shape != (d, d):
            raise InputError(
                f"mean has shape {tuple(self.mean.shape)} and tril {tuple(self.tril.shape)}; "
                "allowed: (d,) and (d, d)"
            )
        if self.count < 1:
            raise InputError(f"count is {self.count}; allowed: at least 1")
        for name, values in (("mean", self.mean), ("tril", self.tril)):
            if len(bad := values[~torch.isfinite(values)]):
                raise InputError(
                    f"{name} of a class Gaussian holds {float(bad[0])}; allowed: finite values. "
                    "Has training diverged?"
                )
        if not (self.tril.diagonal() > 0).all():
            raise InputError(
                f"the smallest diagonal value of tril is {float(self.tril.diagonal().min()):g}; allowed: above 0"
            )

    def cov(self) -> Tensor:
        """Return Sigma = L L^T, float64 (d, d)."""
        tril = self.tril.double()
        return tril @ tril.T


@dataclass(frozen=True)
class Mixture:
    """q(z) = sum_k pi_k N(z | m_k, Sigma_k) with pi_k = n_k / sum n (section 3.3).

    Attributes:
        components: one Gaussian of each client that holds the class, in ascending order of clients.

    Raises:
        InputError: no components, or components of different length.
    """

    components: tuple[ClassGaussian, ...]

    def __post_init__(self) -> None:
        if len({len(c.mean) for c in self.components}) != 1:
            raise InputError(
                f"a mixture of components of lengths {[len(c.mean) for c in self.components]}; "
                "allowed: one or more, all of the same length"
            )

    @property
    def weights(self) -> Tensor:
        """Shares pi, float64 (K,)."""
        counts = torch.tensor([c.count for c in self.components], dtype=torch.float64)
        return counts / counts.sum()

    @property
    def count(self) -> int:
        """Samples behind all components."""
        return sum(c.count for c in self.components)

    def mean(self) -> Tensor:
        """Return sum pi m, float64 (d,)."""
        return self.weights @ torch.stack([c.mean.double() for c in self.components])

    def cov(self) -> Tensor:
        """Return sum pi (Sigma + m m^T) - mbar mbar^T, float64 (d, d)."""
        centre = self.mean()
        total = torch.zeros(len(centre), len(centre), dtype=torch.float64)
        for share, c in zip(self.weights, self.components):
            off = c.mean.double() - centre
            total += share * (c.cov() + torch.outer(off, off))
        return total

    def sample(self, n: int, generator: torch.Generator, normalise: bool = True) -> Tensor:
        """Return ``n`` draws (n, d) float32, those of a component together; see :func:`sample_mixtures`."""
        return sample_mixtures([self], [n], generator, normalise)


def sample_mixtures(
    mixtures: Sequence[Mixture], sizes: Sequence[int], generator: torch.Generator, normalise: bool = True
) -> Tensor:
    """Return draws of several mixtures, one mixture after the other, (sum of sizes, d) float32.

    The share of each component is one multinomial draw with pi; then z = m + L eps. All noise is drawn in one
    call, and components with equal numbers of draws are multiplied in one batch.

    Args:
        mixtures: of the same d.
        sizes: draws from each, >= 0.
        generator: on the CPU, so that all devices draw the same noise.
        normalise: scale each draw to length 1.

    Raises:
        InputError: a negative number of draws, or a list of another length.
    """
    if len(sizes) != len(mixtures) or any(size < 0 for size in sizes):
        raise InputError(f"sizes are {list(sizes)}; allowed: {len(mixtures)} integers >= 0")
    parts: list[ClassGaussian] = []
    counts: list[int] = []
    for mixture, size in zip(mixtures, sizes):
        k = len(mixture.components)
        if k > 1 and size:
            chosen = torch.multinomial(mixture.weights, size, replacement=True, generator=generator)
            counts += torch.bincount(chosen, minlength=k).tolist()
        else:
            counts += [size] + [0] * (k - 1)
        parts += mixture.components
    d = len(parts[0].mean) if parts else 0
    eps = torch.randn(sum(counts), d, generator=generator)
    drawn = _affine(parts, counts, eps)
    return functional.normalize(drawn, dim=1, eps=SMALLEST_NORM) if normalise else drawn


def _affine(parts: Sequence[ClassGaussian], counts: Sequence[int], eps: Tensor) -> Tensor:
    """Return m_k + L_k eps for the rows of ``eps`` (n, d) that belong to each part k."""
    if len(set(counts)) == 1 and len(parts) > 1 and counts[0]:
        means = torch.stack([p.mean.float() for p in parts])
        trils = torch.stack([p.tril.float() for p in parts])
        blocks = eps.view(len(parts), counts[0], eps.shape[1])
        return torch.baddbmm(means[:, None], blocks, trils.mT).flatten(0, 1)
    drawn = torch.empty_like(eps)
    start = 0
    for part, count in zip(parts, counts):
        rows = slice(start, start + count)
        torch.addmm(part.mean.float(), eps[rows], part.tril.float().T, out=drawn[rows])
        start += count
    return drawn


def pack_tril(tril: Tensor) -> Tensor:
    """Return the lower triangle of (d, d) row by row, as (d(d + 1)/2,).

    >>> pack_tril(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    if tril.dim() != 2 or tril.shape[0] != tril.shape[1]:
        raise InputError(f"tril has shape {tuple(tril.shape)}; allowed: (d, d)")
    rows, columns = torch.tril_indices(*tril.shape)
    return tril[rows, columns]


def unpack_tril(vector: Tensor) -> Tensor:
    """Return the lower triangular (d, d) matrix of :func:`pack_tril`.

    Raises:
        InputError: if the length is not d(d + 1)/2 for a whole d.
    """
    d = (isqrt(8 * vector.numel() + 1) - 1) // 2
    if vector.dim() != 1 or d * (d + 1) // 2 != vector.numel():
        raise InputError(
            f"packed triangle has shape {tuple(vector.shape)}; allowed: (d(d + 1)/2,), for example (3,)"
        )
    tril = vector.new_zeros(d, d)
    rows, columns = torch.tril_indices(d, d)
    tril[rows, columns] = vector
    return tril


def cholesky(covariance: Tensor) -> Tensor:
    """Return the lower Cholesky factor, float64 (d, d); a matrix that is singular by rounding gets jitter.

    Up to five retries add 1e-6, 1e-5, ... of the mean variance to the diagonal.

    Raises:
        InputError: not square or not finite, or not positive definite even so.
    """
    sigma = covariance.double()
    if sigma.dim() != 2 or sigma.shape[0] != sigma.shape[1]:
        raise InputError(f"covariance has shape {tuple(sigma.shape)}; allowed: (d, d)")
    if len(bad := sigma[~torch.isfinite(sigma)]):
        raise InputError(f"covariance holds {float(bad[0])}; allowed: finite values")
    factor, failed = torch.linalg.cholesky_ex(sigma)
    step = JITTER * float(sigma.diagonal().mean().clamp_min(1e-12))
    for attempt in range(RETRIES):
        if not failed:
            return factor
        shift = step * 10**attempt * torch.eye(len(sigma), dtype=sigma.dtype)
        factor, failed = torch.linalg.cholesky_ex(sigma + shift)
    if failed:
        least = float(torch.linalg.eigvalsh(sigma)[0])
        raise InputError(
            f"covariance has the eigenvalue {least:.3g}; allowed: positive definite, up to "
            f"{step * 10 ** (RETRIES - 1):.1g} that is added to its diagonal; use shrink or ridge"
        )
    return factor


def matched(mixture: Mixture) -> ClassGaussian:
    """Return the one Gaussian that has the mean and covariance of the mixture, float64."""
    return ClassGaussian(mixture.mean(), cholesky(mixture.cov()), mixture.count)
