"""Class Gaussians as empirical moments of the features (the public code's default)::

    class        m_c = mean,  S_c = 1/(n_c - 1) sum_i (z_i - m_c)(z_i - m_c)^T
    tied_total   S = 1/(n - 1) sum_i (z_i - zbar)(z_i - zbar)^T, around the mean of all classes: it contains the
                 scatter between the classes, so that synthetic classes overlap more than real ones
    tied_within  S = sum_c sum_i (z_i - m_c)(z_i - m_c)^T / (n - C_k), pooled over the client's C_k classes

All arithmetic is float64. Unit vectors of 256 dimensions vary by at most 1/256 = 0.0039 in the mean dimension, so
that the code's ridge of 1e-3 alone adds a quarter of it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedlib.errors import InputError, choose
from fedlib.features.gaussian import ClassGaussian, cholesky
from fedlib.features.moments import ClassMoments, checked_batch

COVARIANCES = ("class", "tied_total", "tied_within")
JITTER = 1e-6


def fit_moments(
    features: Tensor,
    labels: Tensor,
    *,
    covariance: Literal["class", "tied_total", "tied_within"] = "class",
    shrink: float = 0.1,
    ridge: float = 1e-3,
    single: Literal["pooled", "identity"] = "pooled",
    counts: Tensor | None = None,
) -> dict[int, ClassGaussian]:
    """Return the Gaussian of each class that a client holds, float64; tied classes share one tensor L.

    Args:
        features: z, (n, d).
        labels: (n,) int64.
        covariance: see above.
        shrink: a, S <- (1 - a) S + a mean(diag S) I.
        ridge: S <- S + ridge I, and then 1e-6 more before the factorisation, as in the code.
        single: covariance of a class with one sample: ``pooled`` within-class covariance of the client (I/d if
            nothing can be pooled), or the ``identity``, as in the code. Tied covariances of one sample alike.
        counts: true class counts, int64 (C,), where the features are a resample; a class that was never drawn gets
            the mean 0, as in the code.

    Raises:
        InputError: unknown option, shapes that do not fit, no samples, or features that are not finite.
    """
    choose("covariance", covariance, COVARIANCES)
    choose("single", single, ("pooled", "identity"))
    if not len(labels):
        raise InputError("no features to take moments of; allowed: at least one sample")
    num_classes = len(counts) if counts is not None else int(labels.max()) + 1
    dim = features.shape[-1]
    z, y = checked_batch(features, labels, num_classes, dim)
    seen = torch.bincount(y, minlength=num_classes)
    counts = seen if counts is None else counts
    pool = ClassMoments(num_classes, dim)
    pool.update(z, y)
    eye = torch.eye(dim, dtype=torch.float64)
    identity = eye if single == "identity" else eye / dim
    pooled = pool.covariance() if len(y) > int((seen > 0).sum()) else identity

    def factor(sigma: Tensor) -> Tensor:
        # S <- (1 - a) S + a mean(diag S) I;   S <- S + ridge I;   L = chol(S + 1e-6 I)
        shrunk = (1 - shrink) * sigma + shrink * sigma.diagonal().mean() * eye
        return cholesky(shrunk + (ridge + JITTER) * eye)

    if covariance == "class":
        trils = {}
        for label in torch.nonzero(counts).flatten().tolist():
            own = z[y == label]
            if len(own) > 1:
                centred = own - pool.mean[label]
                trils[label] = factor(centred.T @ centred / (len(own) - 1))
            else:
                trils[label] = factor(eye if single == "identity" else pooled)
    else:
        tied = pooled
        if covariance == "tied_total":
            centred = z - z.mean(0)
            tied = centred.T @ centred / (len(z) - 1) if len(z) > 1 else identity
        trils = dict.fromkeys(torch.nonzero(counts).flatten().tolist(), factor(tied))
    return {label: ClassGaussian(pool.mean[label], tril, int(counts[label])) for label, tril in trils.items()}
