"""MPT itself: what the server stores when a vehicle leaves, and the rare prototype that it makes of it every
round.

Jang et al. 2026, sections IV-B and IV-C: phat_t = P_t w + alpha_t e_meas,t + (1 - alpha_t) e_pred,t. Several
departures are several records. All functions are pure; the one thing that may go from round to round is the
smoothed bias estimate of the weight (``Reconstruction.excess``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.features.ncm import regularise
from fedlib.methods.mpt import checks, lite
from fedlib.methods.mpt.decomposition import Decomposition, decompose
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reliability import (
    by_count,
    effective_dimension,
    precision,
    shrinkage,
    squared_length,
)
from fedlib.methods.mpt.residual import measured_residual
from fedlib.methods.mpt.transport import Origin, prepare, transport


@dataclass(frozen=True)
class Record:
    """What the server keeps of one departed class.

    Attributes:
        rare_class: the class.
        classes: the remaining classes, ascending: the order of the columns of P.
        prototypes: P_0, (d, M), of the vehicles that stay; kept to refit the weights.
        prototype: p, (d,), of all vehicles, the leaving one included.
        decomposition: w and e_0.
        origin: Sigma_0 for the transport; None for MPT-lite.
        scale: energy and spread at the departure; None for full MPT.
        measured: e_meas at the departure, (d,), where rare samples stay; only ``difference`` uses it.
    """

    rare_class: int
    classes: tuple[int, ...]
    prototypes: Tensor
    prototype: Tensor
    decomposition: Decomposition
    origin: Origin | None
    scale: lite.Scale | None
    measured: Tensor | None


@dataclass(frozen=True)
class Reconstruction:
    """A reconstructed prototype and how it came about.

    Attributes:
        prototype: phat_t, (d,).
        in_span: P_t w, (d,).
        predicted: e_pred, (d,).
        measured: e_meas, (d,); None without rare samples.
        residual: alpha e_meas + (1 - alpha) e_pred, (d,).
        alpha: weight of the measurement.
        g2: squared difference of the two residuals in the weight's metric; NaN where there is no measurement.
        noise: expected squared noise of the measurement, the same way.
        excess: bias estimate, for the next round's ``excess``.
        refitted: whether the weights were fitted anew because a remaining class had no sample.
    """

    prototype: Tensor
    in_span: Tensor
    predicted: Tensor
    measured: Tensor | None
    residual: Tensor
    alpha: float
    g2: float
    noise: float
    excess: float | None
    refitted: bool


def depart(
    rare_class: int,
    means: Tensor,
    prototype: Tensor,
    options: MPTOptions,
    *,
    covariance: Tensor | None = None,
    energy: float | None = None,
    also_departed: tuple[int, ...] = (),
) -> Record:
    """Store the departure of a class: steps that the server takes at the end of round t_0.

    Means and covariance are those of the vehicles that *stay*, because every later one is: otherwise the leaving
    vehicle's samples of other classes would look like drift. The rare prototype is that of all vehicles.

    Args:
        rare_class: the class that becomes rare.
        means: (C, d), class means of the vehicles that stay, NaN rows for absent classes; its row of
            ``rare_class`` is their few-sample mean and is not part of P.
        prototype: p, (d,).
        options: choices of the method.
        covariance: Sigma_0, (d, d), unregularised, of the remaining classes; for full MPT.
        energy: merged energy; for MPT-lite. Exactly one of the two is given.
        also_departed: classes that left before and have no class mean of their own any more.

    Raises:
        InputError: no remaining class, neither or both of covariance and energy, or shapes that do not fit.
    """
    if (covariance is None) == (energy is None):
        raise InputError("a departure needs either a covariance (MPT) or an energy (MPT-lite)")
    if not 0 <= rare_class < len(means):
        raise InputError(f"rare_class is {rare_class}; allowed: 0 to {len(means) - 1}")
    classes = tuple(live_classes(means, (rare_class, *also_departed)))
    if not classes:
        raise InputError("no class has a sample beside those that left")
    P = means[list(classes)].double().T
    origin = None
    if covariance is not None:
        origin = prepare(options.transport, regularise(covariance.double(), options.rho))
    split = decompose(P, prototype, options.lambda_rel, _metric(options, origin))
    own = means[rare_class]
    few = None if torch.isnan(own).any() else own
    return Record(
        rare_class=rare_class,
        classes=classes,
        prototypes=P,
        prototype=checks.vector("prototype", prototype, P.shape[0]),
        decomposition=split,
        origin=origin,
        scale=None if energy is None else lite.scale_of(energy, P),
        measured=None if few is None else measured_residual(P, few, options.lambda_rel, options.complement),
    )


def reconstruct(
    record: Record,
    means: Tensor,
    n: int,
    options: MPTOptions,
    *,
    mean: Tensor | None = None,
    covariance: Tensor | None = None,
    energy: float | None = None,
    departed: tuple[int, ...] = (),
    excess: float | None = None,
) -> Reconstruction:
    """Return the rare prototype of a round after the departure.

    Args:
        record: of :func:`depart`.
        means: (C, d), class means of the vehicles present, NaN rows for absent classes; only rows of remaining
            classes are read.
        n: number of rare samples that the vehicles present hold; with 0 the measurement plays no part and
            neither
            ``mean`` nor the rare row of ``means`` is read.
        options: as at the departure.
        mean: m_t, (d,), mean of these samples; None takes the rare row of ``means``.
        covariance: Sigma_t, (d, d), unregularised; for full MPT.
        energy: merged energy; for MPT-lite.
        departed: all classes without a class mean of their own (with several departures).
        excess: of the last round, for the smoothed weights.

    Raises:
        InputError: fewer than two of the record's classes left after one lost its samples, covariance or energy
            missing, or shapes that do not fit.
    """
    record, refitted = _with_live_classes(record, means, (record.rare_class, *departed), options)
    P = means[list(record.classes)].double().T
    # b_t = P_t w: the weights of the departure on the prototypes of today
    in_span = P @ record.decomposition.weights
    m = None
    if n > 0:
        m = checks.vector("mean", means[record.rare_class] if mean is None else mean, P.shape[0])
    measured = None
    if m is not None:
        measured = measured_residual(P, m, options.lambda_rel, options.complement)
        if options.extension == "difference" and record.measured is not None:
            # e_meas,t - e_meas,t0 + e0: the same samples existed at the departure
            measured = measured - record.measured + record.decomposition.residual
    predicted = _predict(record, P, n, options, measured, covariance, energy)
    if m is None or measured is None:
        return Reconstruction(
            in_span + predicted, in_span, predicted, None, predicted, 0.0, float("nan"), float("nan"),
            excess, refitted,
        )  # fmt: skip
    gap = measured - predicted
    if options.extension == "full_space":
        gap = m - in_span - predicted
    alpha, g2, noise, excess = _weigh(gap, P, n, options, covariance, energy, excess)
    if options.extension == "full_space":
        # phat = beta m + (1 - beta)(b + e_pred), beta = (8.2) with C = I
        prototype = alpha * m + (1 - alpha) * (in_span + predicted)
        residual = prototype - in_span
    else:
        # e_t = alpha e_meas + (1 - alpha) e_pred   (8.1)
        residual = alpha * measured + (1 - alpha) * predicted
        prototype = in_span + residual
    return Reconstruction(
        prototype, in_span, predicted, measured, residual, alpha, g2, noise, excess, refitted
    )


def live_classes(means: Tensor, departed: tuple[int, ...]) -> list[int]:
    """Return the classes that have a mean of their own: present and not departed, ascending.

    Args:
        means: (C, d), NaN rows for absent classes.
        departed: classes that do not count.
    """
    present = ~torch.isnan(means).any(dim=1)
    return [label for label in torch.nonzero(present).flatten().tolist() if label not in departed]


def _with_live_classes(
    record: Record, means: Tensor, departed: tuple[int, ...], options: MPTOptions
) -> tuple[Record, bool]:
    """Return the record with weights for those of its classes that still have samples."""
    live = set(live_classes(means, departed))
    kept = [place for place, label in enumerate(record.classes) if label in live]
    if len(kept) == len(record.classes):
        return record, False
    if len(kept) < 2:
        raise InputError(
            f"class {record.rare_class} was described by classes {list(record.classes)}, of which "
            f"{[record.classes[place] for place in kept]} have samples; allowed: at least two"
        )
    # (3.3) again on the stored P_0, p for the classes at hand
    P = record.prototypes[:, kept]
    split = decompose(P, record.prototype, options.lambda_rel, _metric(options, record.origin))
    classes = tuple(record.classes[place] for place in kept)
    scale = record.scale and lite.scale_of(record.scale.energy, P)
    return Record(
        record.rare_class, classes, P, record.prototype, split, record.origin, scale, record.measured
    ), True


def _metric(options: MPTOptions, origin: Origin | None) -> Tensor | None:
    """Return Sigma_0 where the weights are fitted in its distance."""
    if options.metric == "euclidean":
        return None
    if origin is None:
        raise InputError("metric is 'mahalanobis'; allowed for MPT-lite, which has no covariance: euclidean")
    return origin.covariance


def _predict(
    record: Record,
    P: Tensor,
    n: int,
    options: MPTOptions,
    measured: Tensor | None,
    covariance: Tensor | None,
    energy: float | None,
) -> Tensor:
    e0 = record.decomposition.residual
    if record.origin is not None:
        if covariance is None:
            raise InputError("this record needs the covariance of the round")
        # e_pred = T_t e0 with T Sigma_0 T^T = Sigma_t, both regularised                           (section 5)
        return transport(record.origin, regularise(covariance.double(), options.rho), e0)
    if energy is None or record.scale is None:
        raise InputError("this record needs the energy of the round")
    # e_pred = g_t e0                                                                              (section 6)
    g = lite.scalar(options.lite_scalar, record.scale, lite.scale_of(energy, P), e0, measured, n)
    return g * e0


def _weigh(
    gap: Tensor,
    P: Tensor,
    n: int,
    options: MPTOptions,
    covariance: Tensor | None,
    energy: float | None,
    excess: float | None,
) -> tuple[float, float, float, float | None]:
    """Return alpha, g2, v and the bias estimate to hand on."""
    nan = float("nan")
    if options.weight == "fixed":
        return options.alpha, nan, nan, excess
    if options.weight == "count":
        return by_count(n, options.kappa), nan, nan, excess
    basis = None if options.extension == "full_space" else P
    if covariance is None:
        # MPT-lite: metric I, v = tr(C Sigma C) / n, the number that it uploads
        if options.weight == "count_deff" or energy is None:
            raise InputError("weight is 'count_deff'; allowed for MPT-lite: js, js_euclid, count, fixed")
        g2, noise = squared_length(gap, None), energy / n
    else:
        sigma = covariance.double()
        metric = None
        if options.weight != "js_euclid":
            metric = precision(regularise(sigma, options.rho))
        # d_eff = tr(St^-1 C Sigma C)
        d_eff = effective_dimension(basis, sigma, metric, options.lambda_rel, options.complement)
        if options.weight == "count_deff":
            return by_count(n, d_eff), nan, nan, excess  # n / (n + d_eff)
        # g2 = (e_meas - e_pred)^T St^-1 (e_meas - e_pred),  v = tr(St^-1 C Sigma C) / n            (8.2)
        g2, noise = squared_length(gap, metric), d_eff / n
    alpha, excess = shrinkage(g2, noise, len(gap), ema=options.ema, excess=excess)
    return alpha, g2, noise, excess
