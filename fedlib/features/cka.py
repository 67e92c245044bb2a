"""Linear centred kernel alignment (CKA): how alike two representations of the same items are.

Kornblith et al. 2019; the unbiased estimator of HSIC is Song et al.'s (2012), its use on mini-batches Nguyen et
al.'s (2021). Rows of X (n, p1) and Y (n, p2) are the same items. All arithmetic is float64, but for
``stacked_cka``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError, choose

Hsic = Literal["biased", "unbiased"]
Form = Literal["auto", "gram", "feature"]

LARGEST_GRAM = 4096  # rows and columns above which neither form is formed
CHUNK = 2**18  # columns that are cast and centred at a time in the Gram form
CONSTANT = 1e-12  # share of the energy below which centred activations count as constant
ROUNDING = 1e-6  # how far outside [0, 1] rounding may put the biased estimate
STEADY = 1e-6  # share of the energy below which centred activations are too small for float32
STACKED_ROUNDING = 1e-5  # the same in float32
RANGE = (1e-20, 1e20)  # energies whose products float32 can hold


def linear_cka(x: Tensor, y: Tensor, *, hsic: Hsic = "biased", form: Form = "auto") -> float:
    """Return the linear CKA of two representations, in [0, 1], or NaN if there are too few rows to tell.

    Two constant representations give 1 (nothing says that they differ), one constant and one not give 0.

    Args:
        x: (n, p1), any floating type.
        y: (n, p2), the same n items in the same order.
        hsic: ``biased`` is the empirical HSIC; of unrelated features it has the mean 1 / (1 + n / p).
            ``unbiased`` has the mean 0 there; negative values are cut off. It needs n > 3 and always takes the
            Gram form.
        form: ``gram`` works on (n, n) matrices, ``feature`` on (p1, p2); ``auto`` takes the smaller.

    Raises:
        InputError: arguments that are no two matrices with the same number of rows, unknown option, or a
            problem with more than 4096 rows and columns (take a subset of the rows).
        FloatingPointError: activations that are not finite.
    """
    choose("hsic", hsic, get_args(Hsic))
    choose("form", form, get_args(Form))
    _check_pair(x, y)
    n, p = len(x), max(x.shape[1], y.shape[1])
    if n < (2 if hsic == "biased" else 4):
        return float("nan")
    gram = hsic == "unbiased" or (n <= p if form == "auto" else form == "gram")
    if (n if gram else p) > LARGEST_GRAM:
        raise InputError(
            f"{n} rows and {p} columns; allowed: at most {LARGEST_GRAM} of either, take fewer rows"
        )
    if not gram:
        return _feature_form(x, y)
    _check_finite(x, y)
    flat = [is_constant(x), is_constant(y)]
    if any(flat):
        return 1.0 if all(flat) else 0.0
    if hsic == "unbiased":
        return ratio(*unbiased_hsic(x, y))
    # CKA = <K~, L~> / (|K~| |L~|) with K~ = X~ X~'; HSIC's factors cancel
    k, other = centred_gram(x), centred_gram(y)
    return _cut(float((k * other).sum() / (k.norm() * other.norm())))


def stacked_cka(x: Tensor, y: Tensor) -> list[float]:
    """Return the biased linear CKA of B pairs at once, each as ``linear_cka`` gives it, with products in float32.

    On the layers of a detector the scores are within 1e-6 of ``linear_cka``'s. A pair whose values differ so
    little, or are so small or large, that float32 would not do goes to ``linear_cka`` itself.

    Args:
        x: (B, n, p1) float32; it is centred in place.
        y: (B, n, p2) float32, the same n items in the same order; it is centred in place.

    Raises:
        InputError: see ``linear_cka``.
        FloatingPointError: activations that are not finite.
    """
    n, p = x.shape[1], max(x.shape[2], y.shape[2])
    if n < 2 or min(n, p) > LARGEST_GRAM:
        return [linear_cka(a, b) for a, b in zip(x, y, strict=True)]
    means = [m.mean(1, keepdim=True) for m in (x, y)]
    for m, mean in zip((x, y), means):
        m -= mean  # in place: a copy of all activations takes as long as the products
    if n <= p:
        own = [m @ m.mT for m in (x, y)]
        cross = _dot(*own)
    else:
        own = [m.mT @ m for m in (x, y)]
        cross = _dot(between := y.mT @ x, between)
    raw = cross / (_dot(own[0], own[0]) * _dot(own[1], own[1])).sqrt()
    sure = _held(own[0], means[0], n) & _held(own[1], means[1], n)
    return [
        _cut(value, STACKED_ROUNDING) if fine else linear_cka(a + mean_a, b + mean_b)
        for value, fine, a, b, mean_a, mean_b in zip(raw.tolist(), sure.tolist(), x, y, *means, strict=True)
    ]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums (B,) float64 of the products of (B, q, q) and (B, q, q)."""
    return torch.linalg.vecdot(a, b).double().sum(1)  # along rows in float32, over them in float64


def _held(own: Tensor, mean: Tensor, n: int) -> Tensor:
    """Return whether float32 is enough for representations with ``own`` = X~' X~ or X~ X~', bool (B,)."""
    centred = own.diagonal(dim1=1, dim2=2).double().sum(1)
    energy = centred + n * mean.double().square().sum((1, 2))
    return (centred > STEADY * energy) & (centred > RANGE[0]) & (centred < RANGE[1])


def _feature_form(x: Tensor, y: Tensor) -> float:
    """Return |Y~' X~|^2 / (|X~' X~| |Y~' Y~|) of (n, p1) and (n, p2), n > 1; HSIC's factors cancel."""
    # NumPy, for its product of a matrix with its own transpose takes half the operations
    (a, own_a, flat_a), (b, own_b, flat_b) = map(_centred, (x, y))
    if flat_a or flat_b:
        return float(flat_a and flat_b)
    cross = b.T @ a
    return _cut(np.vdot(cross, cross) / math.sqrt(np.vdot(own_a, own_a) * np.vdot(own_b, own_b)))


def _centred(m: Tensor) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return X~, X~' X~, and whether X is constant, see ``is_constant``."""
    values = m.detach().cpu().double().numpy()
    with np.errstate(invalid="ignore"):  # infinities become NaN, which is refused below
        mean = values.mean(axis=0)
        values = values - mean
        own = values.T @ values
    centred = float(own.trace())
    if not math.isfinite(centred):
        raise FloatingPointError("activations are not finite")
    # |X|^2 = |X~|^2 + n |mean|^2
    return values, own, _is_flat(centred, centred + len(values) * float(mean @ mean))


def _is_flat(centred: float, energy: float) -> bool:
    return centred <= CONSTANT * max(energy, 1e-30)


def _cut(raw: float, rounding: float = ROUNDING) -> float:
    if not -rounding <= raw <= 1 + rounding:
        raise ArithmeticError(f"linear CKA is {raw}, which is outside [0, 1] by more than rounding")
    return min(max(raw, 0.0), 1.0)


def minibatch_cka(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the CKA of representations that come in batches: unbiased HSIC summed, then one ratio.

    Nguyen et al. 2021, equation 3. Batches with fewer than four rows are left out; NaN if none is left.

    Args:
        batches: pairs (n_b, p1), (n_b, p2), at most 4096 rows each.

    Raises:
        InputError: a batch that is no two matrices with the same number of rows, or has more than 4096 rows.
        FloatingPointError: activations that are not finite.
    """
    sums = torch.zeros(3, dtype=torch.float64)
    used = False
    for number, (x, y) in enumerate(batches):
        _check_pair(x, y)
        _check_finite(x, y)
        if len(x) > LARGEST_GRAM:
            raise InputError(f"batch {number} has {len(x)} rows; allowed: at most {LARGEST_GRAM}")
        if len(x) >= 4:
            sums += torch.tensor(unbiased_hsic(x, y), dtype=torch.float64)
            used = True
    return ratio(*sums.tolist()) if used else float("nan")


def _check_pair(x: Tensor, y: Tensor) -> None:
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y):
        raise InputError(
            f"representations have shapes {tuple(x.shape)} and {tuple(y.shape)}; "
            "allowed: two matrices with the same number of rows"
        )


def _check_finite(x: Tensor, y: Tensor) -> None:
    if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise FloatingPointError("activations are not finite")


def ratio(xy: float, xx: float, yy: float) -> float:
    """Return HSIC(X,Y) / sqrt(HSIC(X,X) HSIC(Y,Y)) cut to [0, 1]; NaN where a self-similarity is not positive."""
    if xx <= 0 or yy <= 0:
        return float("nan")
    return float(min(max(xy / (xx * yy) ** 0.5, 0.0), 1.0))


def unbiased_hsic(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Return the unbiased HSIC of (X, Y), (X, X) and (Y, Y) for linear kernels (Song et al. 2012, equation 5).

        HSIC_u(K, L) = [tr(K^ L^) + (1'K^ 1)(1'L^ 1) / ((n-1)(n-2)) - 2 / (n-2) 1'K^ L^ 1] / (n (n-3))

    with K^ = X X' without its diagonal.

    Args:
        x: (n, p1), n > 3.
        y: (n, p2).
    """
    n = len(x)
    # The estimate does not depend on the mean; centring first keeps large means from cancelling digits.
    k, other = (centred_gram(m).fill_diagonal_(0.0) for m in (x, y))

    def value(a: Tensor, b: Tensor) -> float:
        rows_a, rows_b = a.sum(1), b.sum(1)
        total = (a * b).sum() + rows_a.sum() * rows_b.sum() / ((n - 1) * (n - 2))
        return float((total - 2 / (n - 2) * (rows_a @ rows_b)) / (n * (n - 3)))

    return value(k, other), value(k, k), value(other, other)


def centred_gram(x: Tensor, chunk: int = CHUNK) -> Tensor:
    """Return X~ X~' (n, n) float64 of the column-centred ``x`` (n, p), ``chunk`` columns at a time."""
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for part in x.split(chunk, dim=1):
        part = part.double()
        part = part - part.mean(0)
        total += part @ part.T
    return total


def is_constant(x: Tensor) -> bool:
    """Return whether the rows of ``x`` (n, p) are equal up to rounding: ``|X~|^2 <= 1e-12 |X|^2``."""
    energy = centred = 0.0
    for part in x.split(CHUNK, dim=1):
        part = part.double()
        energy += float(part.square().sum())
        centred += float((part - part.mean(0)).square().sum())
    return _is_flat(centred, energy)
