"""MPT-lite: one number instead of a covariance.

Jang et al. 2026 call it a "scalar correction" with "a small communication increase" and do not give the number.
The predicted residual is g_t e_0 with one of

==============  ================================================  ==============  ==================
kind            g_t                                               needs uploaded  note
==============  ================================================  ==============  ==================
``comp_trace``  sqrt(tr(C_t Sigma_t C_t) / tr(C_0 Sigma_0 C_0))   1 number        the default
``trace``       sqrt(tr Sigma_t / tr Sigma_0)                     1 number        over-scales
``spread``      norm_F(Pc_t) / norm_F(Pc_0)                       nothing         over-scales most
``regress``     1 + a (g_m - 1), g_m = <e_meas, e0> / norm(e0)^2  1 number        needs rare samples
``none``        1                                                 nothing         static residual
==============  ================================================  ==============  ==================

The number is an *energy*: the summed squared length of within-class deviations, in the complement C of the
remaining prototypes or (``trace``, ``regress``) in the whole space. Every kind sends it, since the weight of
the measured residual needs it as well; the column counts what g_t itself needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedlib.errors import InputError, choose
from fedlib.features.moments import ClassMoments
from fedlib.methods.mpt import checks
from fedlib.methods.mpt.decomposition import complement

Scalar = Literal["comp_trace", "trace", "spread", "regress", "none"]
SCALARS: tuple[str, ...] = get_args(Scalar)


def in_complement(kind: Scalar) -> bool:
    """Return whether the energy of this kind is measured in the complement of the remaining prototypes."""
    return choose("lite_scalar", kind, SCALARS) not in ("trace", "regress")


def client_energy(
    moments: ClassMoments, features: Tensor, labels: Tensor, prototypes: Tensor | None, lambda_rel: float
) -> float:
    """Return sum ||C (z - mu_kc)||^2 over a vehicle's samples of pooled classes: the one number that it sends.

    Args:
        moments: the vehicle's own counts and means.
        features: (n, d) of its samples.
        labels: (n,) int64.
        prototypes: P_t, (d, M), sent by the server; None for C = I.
        lambda_rel: relative ridge of C.
    """
    kept = moments.pooled[labels]
    deviations = (features[kept].double() - moments.mean[labels[kept]]).T  # (d, n)
    return _energy(deviations, prototypes, lambda_rel)


def merged_energy(
    energies: Sequence[float], parts: Sequence[ClassMoments], prototypes: Tensor | None, lambda_rel: float
) -> float:
    """Return tr(C Sigma C) of all vehicles together, exact: their energies, and what lies between their means.

    Args:
        energies: of :func:`client_energy`.
        parts: the vehicles' counts and means, in the same order.
        prototypes: P_t, (d, M), or None for C = I.
        lambda_rel: relative ridge of C.

    Raises:
        InputError: numbers of energies and parts that differ, or no more samples than classes.
    """
    if len(energies) != len(parts):
        raise InputError(f"{len(energies)} energies of {len(parts)} vehicles; allowed: one each")
    whole = ClassMoments.merge(parts)
    degrees = _degrees(whole)
    total = float(sum(energies))
    for part in parts:
        # between vehicles: sum_c n_kc ||C (mu_kc - mu_c)||^2, the part of (2.2) that the server knows
        held = part.pooled & (part.count > 0)
        shifts = (part.mean[held] - whole.mean[held]) * part.count[held].double().sqrt()[:, None]
        total += _energy(shifts.T, prototypes, lambda_rel)
    return total / degrees


def client_squares(moments: ClassMoments, features: Tensor, labels: Tensor) -> Tensor:
    """Return sum (z - mu_kc)^2 of each feature, (d,), over a vehicle's samples of pooled classes.

    What the ``diag`` readout sends on top: d numbers.

    Args:
        moments: the vehicle's own counts and means.
        features: (n, d) of its samples.
        labels: (n,) int64.
    """
    kept = moments.pooled[labels]
    return (features[kept].double() - moments.mean[labels[kept]]).square().sum(dim=0)


def merged_variances(squares: Sequence[Tensor], parts: Sequence[ClassMoments]) -> Tensor:
    """Return the diagonal of Sigma over all vehicles together, (d,), exact.

    Args:
        squares: of :func:`client_squares`.
        parts: the vehicles' counts and means, in the same order.

    Raises:
        InputError: numbers of vectors and parts that differ, or no more samples than classes.
    """
    if len(squares) != len(parts):
        raise InputError(f"squares of {len(squares)} and means of {len(parts)} vehicles; allowed: one each")
    whole = ClassMoments.merge(parts)
    degrees = _degrees(whole)
    total = torch.stack(list(squares)).double().sum(dim=0)
    for part in parts:
        # sum_c n_kc (mu_kc - mu_c)^2, the diagonal of the part of (2.2) that the server knows
        shifts = (part.mean - whole.mean).square() * (part.count * part.pooled)[:, None]
        total += shifts.sum(dim=0)
    return total / degrees


def _degrees(whole: ClassMoments) -> int:
    """Return N - M of the pooled classes."""
    counts = whole.count[whole.pooled]
    samples, live = int(counts.sum()), int((counts > 0).sum())
    if samples <= live:
        raise InputError(
            f"{samples} samples of {live} classes give no spread; allowed: more than one a class"
        )
    return samples - live


@dataclass(frozen=True)
class Scale:
    """What a scalar kind compares over time.

    Attributes:
        energy: tr(C Sigma C), or tr Sigma.
        spread: ||Pc||_F.
    """

    energy: float
    spread: float


def scale_of(energy: float, prototypes: Tensor) -> Scale:
    """Return the scale of a round from the merged energy and P (d, M)."""
    P = checks.matrix("prototypes", prototypes)
    return Scale(energy, float((P - P.mean(dim=1, keepdim=True)).norm()))


def scalar(
    kind: Scalar,
    then: Scale,
    now: Scale,
    residual: Tensor,
    measured: Tensor | None = None,
    n: int = 0,
) -> float:
    """Return g_t.

    Args:
        kind: one of ``SCALARS``.
        then: at the departure.
        now: in this round.
        residual: e_0, (d,).
        measured: e_meas,t, (d,); only ``regress`` uses it.
        n: number of rare samples behind ``measured``.

    Raises:
        InputError: unknown kind, or nothing to scale by.
    """
    choose("lite_scalar", kind, SCALARS)
    if kind == "none":
        return 1.0
    if kind == "regress":
        length = float(residual @ residual)
        if n == 0 or measured is None or length == 0:
            return 1.0
        # g_m = <e_meas, e0> / ||e0||^2,  a = max(0, 1 - v / (g_m - 1)^2),  v = tr Sigma / (d n ||e0||^2)
        change = float(measured @ residual) / length - 1
        noise = now.energy / (len(residual) * n * length)
        return 1 + (max(0.0, 1 - noise / change**2) * change if change else 0.0)
    before, after = (then.spread, now.spread) if kind == "spread" else (then.energy, now.energy)
    if before <= 0:
        raise InputError(f"{kind} was {before:g} at the departure; allowed: above 0")
    return after / before if kind == "spread" else (after / before) ** 0.5


def _energy(deviations: Tensor, prototypes: Tensor | None, lambda_rel: float) -> float:
    if deviations.shape[1] == 0:
        return 0.0
    if prototypes is not None:
        deviations = complement(prototypes, deviations, lambda_rel)
    return float(deviations.square().sum())
