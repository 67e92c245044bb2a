"""How much the measured residual counts beside the predicted one.

Jang et al. 2026, section IV-C-2: e_t = alpha e_meas + (1 - alpha) e_pred, with larger alpha for larger and more
reliable sets of samples and alpha = 0 when none remain. The summary gives no formula. With measurement noise v
and prediction bias b the best weight is ||b||^2 / (||b||^2 + v), and E||e_meas - e_pred||^2 = ||b||^2 + v, so
that both are seen in one difference: a positive-part shrinkage weight in the manner of James and Stein (1961).

``js`` uses the Mahalanobis length, ``js_euclid`` the Euclidean one (MPT-lite has no covariance); ``count`` is
n / (n + kappa), ``count_deff`` n / (n + d_eff) with d_eff the noise's effective dimension, ``fixed`` a constant.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.mpt import checks
from fedlib.methods.mpt.decomposition import Complement, complement
from fedlib.methods.mpt.transport import cholesky

Weight = Literal["js", "js_euclid", "count", "count_deff", "fixed"]
WEIGHTS: tuple[str, ...] = get_args(Weight)
AGREE = 1e-12  # squared difference per feature below which the two residuals are the same


def shrinkage(
    g2: float, noise: float, dim: int = 1, *, ema: float = 0.0, excess: float | None = None
) -> tuple[float, float]:
    """Return alpha = max(0, 1 - v / g2), and the bias estimate max(g2 - v, 0) to hand on to the next round.

    Args:
        g2: squared difference of measurement and prediction.
        noise: v, expected squared noise of the measurement, >= 0.
        dim: d; below 1e-12 d the two agree and alpha is 0.
        ema: share of the last bias estimate that is kept, in [0, 1): the noise is the same samples in every
            round.
        excess: last bias estimate; None at first.

    Raises:
        InputError: a value out of range.

    >>> shrinkage(8.0, 2.0)[0], shrinkage(2.0, 8.0)[0]
    (0.75, 0.0)
    """
    checks.at_least("g2", g2, 0)
    checks.at_least("noise", noise, 0)
    if not 0 <= ema < 1:
        raise InputError(f"ema is {ema!r}; allowed: at least 0 and below 1")
    fresh = max(g2 - noise, 0.0)
    excess = fresh if excess is None else ema * excess + (1 - ema) * fresh
    if g2 <= AGREE * dim or excess == 0:
        return 0.0, excess
    # alpha = max(0, 1 - v / g2) = b / (b + v) with b = max(g2 - v, 0), smoothed over rounds where wanted   (8.2)
    return excess / (excess + noise), excess


def precision(sigma: Tensor) -> Tensor:
    """Return Sigma^-1, (d, d), of a positive definite Sigma, (d, d).

    Raises:
        InputError: not positive definite.
    """
    return torch.cholesky_inverse(cholesky(sigma))


def squared_length(v: Tensor, metric: Tensor | None) -> float:
    """Return v^T S v, or v^T v without a metric.

    Args:
        v: (d,).
        metric: S, (d, d): the precision St^-1 for the Mahalanobis length.
    """
    return float(v @ v if metric is None else v @ (metric @ v))


def effective_dimension(
    prototypes: Tensor | None,
    sigma: Tensor,
    metric: Tensor | None,
    lambda_rel: float,
    kind: Complement = "soft",
) -> float:
    """Return tr(S C Sigma C), the squared noise of a mean of one sample in the complement, in the metric S.

    Args:
        prototypes: P, (d, M); None for the whole space, C = I.
        sigma: Sigma_t, (d, d), which stands for the rare class's own covariance.
        metric: S, (d, d), symmetric: the precision St^-1 for the Mahalanobis noise; None takes I.
        lambda_rel: relative ridge of C.
        kind: ``soft`` or ``hard`` complement.
    """
    sigma = checks.square("covariance", sigma)
    if prototypes is not None:
        sigma = complement(prototypes, complement(prototypes, sigma, lambda_rel, kind).T, lambda_rel, kind)
    return float(sigma.trace() if metric is None else (metric * sigma).sum())


def by_count(n: int, kappa: float) -> float:
    """Return n / (n + kappa); ``kappa`` > 0.

    Raises:
        InputError: kappa not positive, or a negative count.
    """
    checks.at_least("n", n, 0)
    if not 0 < kappa < float("inf"):
        raise InputError(f"kappa is {kappa!r}; allowed: a number above 0")
    return n / (n + kappa)
