"""The choices that MPT leaves open, with their defaults (Jang et al. 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fedlib.errors import InputError, choose
from fedlib.methods.mpt import checks, lite
from fedlib.methods.mpt.decomposition import Complement
from fedlib.methods.mpt.reliability import WEIGHTS, Weight
from fedlib.methods.mpt.transport import KINDS, Kind

Extension = Literal["none", "full_space", "difference"]
Metric = Literal["euclidean", "mahalanobis"]


@dataclass(frozen=True)
class MPTOptions:
    """Choices of the method.

    Attributes:
        lambda_rel: ridge of the affine weights, relative to the spread of the prototypes, (3.5).
        rho: trace-scaled ridge of the covariances, (4.1).
        transport: how the stored residual moves; see ``transport``.
        complement: ``soft`` or ``hard``; see ``decomposition.complement``.
        weight: how measured and predicted residual are weighed; see ``reliability``.
        ema: smoothing of the ``js`` weights over rounds, in [0, 1); 0 is none.
        kappa: the constant of ``count``.
        alpha: the constant of ``fixed``: 0 is prediction only, 1 measurement only.
        lite_scalar: scalar of MPT-lite; see ``lite``.
        extension: ours, not the paper's. ``full_space`` weighs whole prototypes, phat = beta m + (1 - beta)(P w
            + e_pred); ``difference`` measures the change since the departure, e_meas,t - e_meas,t0 + e_0.
        metric: distance in which the affine weights are fitted. ``mahalanobis`` (ours) takes that of Sigma_0;
            it needs the covariance, and the measured residual, whose complement stays Euclidean, then no longer
            equals e_0 at the departure.
    """

    lambda_rel: float = 0.01
    rho: float = 0.01
    transport: Kind = "ot"
    complement: Complement = "soft"
    weight: Weight = "js"
    ema: float = 0.0
    kappa: float = 20.0
    alpha: float = 0.0
    lite_scalar: lite.Scalar = "comp_trace"
    extension: Extension = "none"
    metric: Metric = "euclidean"

    def __post_init__(self) -> None:
        checks.at_least("lambda_rel", self.lambda_rel, 0)
        checks.at_least("rho", self.rho, 0)
        choose("transport", self.transport, KINDS)
        choose("complement", self.complement, get_args(Complement))
        choose("weight", self.weight, WEIGHTS)
        choose("lite_scalar", self.lite_scalar, lite.SCALARS)
        choose("extension", self.extension, get_args(Extension))
        choose("metric", self.metric, get_args(Metric))
        if not 0 <= self.ema < 1:
            raise InputError(f"ema is {self.ema!r}; allowed: at least 0 and below 1")
        if not 0 < self.kappa < float("inf"):
            raise InputError(f"kappa is {self.kappa!r}; allowed: a number above 0")
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha is {self.alpha!r}; allowed: 0 to 1")
