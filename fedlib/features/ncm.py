"""Nearest class mean: classify a feature by the prototype that is nearest to it.

The readout of MPT (Jang et al.) with the Mahalanobis distance of the pooled within-class covariance, and the
plain Euclidean one. Both are linear classifiers (a common covariance and no class priors), so that a server can
ship them to clients as a C x (d + 1) head. Letters as in :mod:`fedlib.features.moments`.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from fedlib.errors import InputError
from fedlib.features.finite import all_finite
from fedlib.features.moments import ClassMoments


def prototypes(moments: ClassMoments) -> torch.Tensor:
    """Return the mean feature of each class, float64 (C, d); NaN in the row of a class without samples.

    Both readouts below take such a matrix and never predict a class whose row is NaN.
    """
    return torch.where((moments.count > 0)[:, None], moments.mean, torch.nan)


def regularise(sigma: torch.Tensor, rho: float) -> torch.Tensor:
    """Return Sigma + rho (tr Sigma / d) I: a ridge that scales and rotates with the features.

    Its condition number is at most d / rho + 1, so that dead features of a ReLU network do no harm.

    Args:
        sigma: covariance, (d, d).
        rho: relative size of the ridge, >= 0.

    Raises:
        InputError: rho negative, or a covariance without positive trace (all features dead) or not finite.
    """
    if not 0 <= rho < float("inf"):
        raise InputError(f"rho is {rho!r}; allowed: a number >= 0")
    if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1] or not all_finite(sigma):
        raise InputError(f"covariance has shape {tuple(sigma.shape)}; allowed: finite values (d, d)")
    trace = sigma.trace()
    if trace <= 0:
        raise InputError(
            f"covariance has trace {float(trace):g}; allowed: > 0, at least one feature that varies"
        )
    return sigma + rho * trace / len(sigma) * torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)


class MahalanobisNCM:
    """Predict argmin_c (z - mu_c)^T Sigma^-1 (z - mu_c); the lowest class number wins a tie.

    Args:
        class_means: prototypes mu_c, (C, d); a row of NaN for a class that is never predicted.
        covariance: Sigma, (d, d), positive definite: as :func:`regularise` returns it.

    Raises:
        InputError: shapes that do not fit, no prototype, or a covariance that is not positive definite.

    >>> means = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    >>> readout = MahalanobisNCM(means, torch.diag(torch.tensor([4.0, 1.0])))
    >>> readout.predict(torch.tensor([[1.0, 1.1]]))
    tensor([2])
    """

    def __init__(self, class_means: torch.Tensor, covariance: torch.Tensor) -> None:
        means = class_means.detach().to("cpu", torch.float64)
        sigma = covariance.detach().to("cpu", torch.float64)
        if means.ndim != 2 or sigma.shape != (means.shape[1], means.shape[1]):
            raise InputError(
                f"prototypes {tuple(means.shape)} and covariance {tuple(sigma.shape)}; allowed: (C, d) and (d, d)"
            )
        missing = torch.isnan(means).all(dim=1)  # (C,)
        if missing.all() or not torch.isfinite(means[~missing]).all():
            raise InputError(
                "prototypes: allowed are finite rows, and NaN rows for absent classes but not for all"
            )
        factor, failed = torch.linalg.cholesky_ex(sigma)  # Sigma = L L^T
        if failed:
            raise InputError("covariance is not positive definite; regularise it with rho > 0")
        self._means, self._factor = means, factor
        # Distances from the centre m of the prototypes keep the numbers small, which float32 scores need:
        #   w_c = Sigma^-1 (mu_c - m),   b_c = -m^T w_c - (mu_c - m)^T w_c / 2
        centre = means[~missing].mean(dim=0)
        centred = torch.where(missing[:, None], 0.0, means - centre)  # (C, d)
        weight = torch.cholesky_solve(centred.T, factor).T  # (C, d)
        bias = -weight @ centre - (centred * weight).sum(dim=1) / 2  # (C,)
        self._weight = weight.float()
        self._bias = torch.where(missing, -torch.inf, bias).float()

    def distances(self, z: torch.Tensor) -> torch.Tensor:
        """Return squared distances to all prototypes, float64 (B, C); NaN for absent classes.

        Computed from whitened differences, ||L^-1 (z - mu_c)||^2, and so exact also for far-away features.
        """
        difference = z.detach().to("cpu", torch.float64)[:, None, :] - self._means  # (B, C, d)
        white = torch.linalg.solve_triangular(
            self._factor, difference.flatten(0, 1).T, upper=False
        )  # (d, B * C)
        return white.square().sum(dim=0).view(difference.shape[:2])

    def scores(self, z: torch.Tensor) -> torch.Tensor:
        """Return linear scores, float32 (B, C): -distance / 2 up to a constant of each sample, on z's device."""
        return functional.linear(z.float(), self._weight.to(z.device), self._bias.to(z.device))

    def predict(self, z: torch.Tensor) -> torch.Tensor:
        """Return the class of each feature, int64 (B,)."""
        return self.scores(z).argmax(dim=1)

    def as_linear_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight (C, d) and bias (C,), float32; the bias of an absent class is minus infinity."""
        return self._weight.clone(), self._bias.clone()


class EuclideanNCM(MahalanobisNCM):
    """Predict the class whose prototype is nearest in the Euclidean distance.

    Args:
        class_means: prototypes mu_c, (C, d); a row of NaN for a class that is never predicted.

    Raises:
        InputError: wrong shape, or no prototype.
    """

    def __init__(self, class_means: torch.Tensor) -> None:
        super().__init__(class_means, torch.eye(class_means.shape[-1], dtype=torch.float64))
