"""What every function of MPT asks of its tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.features.finite import all_finite


def matrix(name: str, value: Tensor, *, rows: int | None = None) -> Tensor:
    """Return ``value`` as float64 (rows, columns) with at least one column.

    Raises:
        InputError: another shape, or values that are not finite.
    """
    if value.ndim != 2 or value.shape[1] < 1 or (rows is not None and value.shape[0] != rows):
        wanted = "d" if rows is None else rows
        raise InputError(f"{name} has shape {tuple(value.shape)}; allowed: ({wanted}, at least 1)")
    return _finite(name, value)


def vector(name: str, value: Tensor, size: int) -> Tensor:
    """Return ``value`` as float64 (size,).

    Raises:
        InputError: another shape, or values that are not finite.
    """
    if value.shape != (size,):
        raise InputError(f"{name} has shape {tuple(value.shape)}; allowed: ({size},)")
    return _finite(name, value)


def square(name: str, value: Tensor, size: int | None = None) -> Tensor:
    """Return ``value`` as float64 (d, d), made exactly symmetric.

    Raises:
        InputError: another shape, or values that are not finite.
    """
    if value.ndim != 2 or value.shape[0] != value.shape[1] or (size is not None and len(value) != size):
        wanted = "d, d" if size is None else f"{size}, {size}"
        raise InputError(f"{name} has shape {tuple(value.shape)}; allowed: ({wanted})")
    value = _finite(name, value)
    return (value + value.T) / 2


def at_least(name: str, value: float, least: float) -> float:
    """Return ``value``.

    Raises:
        InputError: below ``least``, infinite or NaN.
    """
    if not least <= value < float("inf"):
        raise InputError(f"{name} is {value!r}; allowed: a number >= {least:g}")
    return float(value)


def _finite(name: str, value: Tensor) -> Tensor:
    value = value.detach().to("cpu", torch.float64)
    if not all_finite(value):
        raise InputError(f"{name} holds NaN or infinite values")
    return value
