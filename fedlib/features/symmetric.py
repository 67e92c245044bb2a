"""Symmetric matrices as the vector of their upper triangle: d(d + 1)/2 values instead of d^2 on the wire."""

from __future__ import annotations

import math

import torch

from fedlib.errors import InputError


def pack(matrix: torch.Tensor) -> torch.Tensor:
    """Return the upper triangle of a symmetric (d, d) matrix, row by row, as (d(d + 1)/2,).

    >>> pack(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])

    Raises:
        InputError: if the matrix is not square.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"matrix has shape {tuple(matrix.shape)}; allowed: (d, d)")
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def unpack(vector: torch.Tensor) -> torch.Tensor:
    """Return the symmetric (d, d) matrix whose upper triangle is ``vector``.

    Raises:
        InputError: if the length is not d(d + 1)/2 for a whole d.
    """
    dim = dim_of(vector)
    matrix = vector.new_empty(dim, dim)
    rows, columns = torch.triu_indices(dim, dim)
    matrix[rows, columns] = vector
    matrix[columns, rows] = vector
    return matrix


def dim_of(vector: torch.Tensor) -> int:
    """Return d of a packed matrix (d(d + 1)/2,).

    Raises:
        InputError: if the length is not d(d + 1)/2 for a whole d.
    """
    dim = (math.isqrt(8 * vector.numel() + 1) - 1) // 2
    if vector.ndim != 1 or dim * (dim + 1) // 2 != vector.numel():
        raise InputError(
            f"packed matrix has shape {tuple(vector.shape)}; allowed: (d(d + 1)/2,), for example (3,)"
        )
    return dim
