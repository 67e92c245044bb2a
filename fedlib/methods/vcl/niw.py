"""Class Gaussians as the posterior mean of a Normal-inverse-Wishart model of the features: exact, in closed form.

The conjugate Bayesian version of the class moments, well conditioned also for fewer samples than dimensions. Not
part of the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian, cholesky
from fedlib.features.moments import ClassMoments, checked_batch

KAPPA = 1e-3  # prior samples behind the mean 0


def fit_niw(features: Tensor, labels: Tensor) -> dict[int, ClassGaussian]:
    """Return the posterior Gaussian of each class, float64.

    Prior: mean 0 with weight kappa_0 = 1e-3, nu_0 = d + 2 degrees of freedom and Psi_0 = nu_0 s^2 I, with s^2 the
    mean pooled within-class variance (1/d where nothing can be pooled).

    Args:
        features: z, (n, d).
        labels: (n,) int64.

    Raises:
        InputError: shapes that do not fit, no samples, or features that are not finite.
    """
    if not len(labels):
        raise InputError("no features to fit; allowed: at least one sample")
    dim, num_classes = features.shape[-1], int(labels.max()) + 1
    z, y = checked_batch(features, labels, num_classes, dim)
    pool = ClassMoments(num_classes, dim)
    pool.update(z, y)
    held = torch.nonzero(pool.count).flatten().tolist()
    spread = float(pool.covariance().diagonal().mean()) if len(y) > len(held) else 1 / dim
    nu = dim + 2
    psi = nu * max(spread, 1e-12) * torch.eye(dim, dtype=torch.float64)
    fitted = {}
    for label in held:
        n, mean = int(pool.count[label]), pool.mean[label]
        centred = z[y == label] - mean
        # E[Sigma] = (Psi_0 + sum (z - m)(z - m)^T + kappa_0 n / (kappa_0 + n) m m^T) / (nu_0 + n - d - 1)
        scatter = centred.T @ centred + KAPPA * n / (KAPPA + n) * torch.outer(mean, mean)
        sigma = (psi + scatter) / (nu + n - dim - 1)
        # E[mu] = n m / (kappa_0 + n)
        fitted[label] = ClassGaussian(n / (KAPPA + n) * mean, cholesky(sigma), n)
    return fitted
