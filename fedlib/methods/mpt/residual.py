"""The residual as the few remaining samples of the rare class show it."""

from __future__ import annotations

from torch import Tensor

from fedlib.methods.mpt import checks
from fedlib.methods.mpt.decomposition import Complement, complement


def measured_residual(
    prototypes: Tensor, mean: Tensor, lambda_rel: float, kind: Complement = "soft"
) -> Tensor:
    """Return e_meas = C (m - mubar): the rare mean, projected onto the complement of the remaining prototypes.

    Jang et al. 2026, section IV-C-2. With the soft complement it is the same functional as the residual at the
    departure, so that an unchanged mean gives an unchanged residual. Its noise is C Sigma_r C / n.

    Args:
        prototypes: P_t, (d, M), of the remaining classes.
        mean: m_t, (d,), mean feature of the rare samples that are held out of training.
        lambda_rel: relative ridge, as at the departure.
        kind: ``soft`` or ``hard`` complement.

    Raises:
        InputError: shapes that do not fit, or values that are not finite.
    """
    P = checks.matrix("prototypes", prototypes)
    m = checks.vector("mean", mean, P.shape[0])
    # e_meas,t = C_t (m_t - mubar_t),  C_t = C_lambda(P_t) with lambda of (3.5) at t   (7.1)
    return complement(P, m - P.mean(dim=1), lambda_rel, kind)
