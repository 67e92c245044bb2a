"""LDC: learn a linear map from old to new features and move the prototype with it (Gomez-Villa et al. 2024).

``sgd`` is the authors' way: the map is trained by Adam on pairs of features, which have to be in one place.
``ridge`` is the closed form: two sums of outer products, which add up exactly over vehicles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.methods.mpt import checks

Start = Literal["random", "identity"]
ADAM = (0.9, 0.999, 1e-8)  # decay of the two moments, and epsilon: the defaults of Kingma and Ba 2015


@dataclass(frozen=True)
class LDC:
    """Settings of the trained map.

    Attributes:
        epochs: passes over the pairs.
        batch_size: pairs in a step.
        lr: step size of Adam.
        start: initial map: ``random`` as in the authors' code (a new linear layer), or ``identity``.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    start: Start = "random"

    def __post_init__(self) -> None:
        choose("start", self.start, get_args(Start))


def fit_sgd(old: Tensor, new: Tensor, options: LDC, seed: int, round: int) -> tuple[Tensor, int]:
    """Train a linear map without bias on mean squared error.

    Args:
        old: (n, d), features under the old backbone.
        new: (n, d), the same samples under the new one.
        options: see :class:`LDC`.
        seed: of the run.
        round: for initial values and the order of the batches.

    Returns:
        A, (d, d) float64, with z_new ~ A z_old, and the number of steps taken.

    Raises:
        InputError: no pairs, or shapes that do not fit.
    """
    x, y = _pairs(old, new)
    d = x.shape[1]
    if options.start == "identity":
        weight = torch.eye(d)
    else:  # as a new linear layer: uniform in +-1/sqrt(d)
        generator = seeds.torch_generator(seed, "ldc", "weights", round)
        weight = (2 * torch.rand(d, d, generator=generator) - 1) / d**0.5
    first, second = torch.zeros(d, d), torch.zeros(d, d)
    beta1, beta2, epsilon = ADAM
    order = seeds.torch_generator(seed, "ldc", "batches", round)
    step = 0
    for _ in range(options.epochs):
        for rows in torch.randperm(len(x), generator=order).split(options.batch_size):
            a = x[rows]
            error = torch.addmm(y[rows], a, weight.T, beta=-1)
            grad = error.T @ a * (2 / error.numel())  # of the mean over pairs and features
            step += 1
            # Adam, written out: the first optimizer of a process costs over a second of imports
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            scale = (second / (1 - beta2**step)).sqrt_().add_(epsilon)
            weight.addcdiv_(first, scale, value=-options.lr / (1 - beta1**step))
    return weight.double(), step


def sums(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return S_no = sum z_new z_old^T and S_oo = sum z_old z_old^T, (d, d) float64 each; they add up over
    vehicles."""
    if old.shape != new.shape or old.ndim != 2:
        raise InputError(
            f"features have shapes {tuple(old.shape)} and {tuple(new.shape)}; allowed: the same (n, d)"
        )
    a, b = old.double(), new.double()
    return b.T @ a, a.T @ a


def fit_ridge(s_no: Tensor, s_oo: Tensor, lambda_rel: float = 1e-3) -> Tensor:
    """Return the ridge map A = (S_no + lambda I)(S_oo + lambda I)^-1, (d, d), which shrinks to the identity.

    Args:
        s_no: (d, d), sum over all vehicles.
        s_oo: (d, d), the same.
        lambda_rel: lambda relative to tr S_oo / d, >= 0.

    Raises:
        InputError: shapes that do not fit, a negative ridge, or S_oo singular without one.
    """
    checks.at_least("lambda_rel", lambda_rel, 0)
    oo = checks.square("S_oo", s_oo)
    no = checks.matrix("S_no", s_no, rows=len(oo))
    eye = torch.eye(len(oo), dtype=torch.float64)
    lam = lambda_rel * float(oo.trace()) / len(oo)
    factor, failed = torch.linalg.cholesky_ex(oo + lam * eye)
    if failed:
        raise InputError("S_oo is singular: fewer samples than features; allowed: lambda_rel > 0")
    # A (S_oo + lam I) = S_no + lam I
    return torch.cholesky_solve((no + lam * eye).T, factor).T


def _pairs(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    if old.shape != new.shape or old.ndim != 2 or len(old) == 0:
        raise InputError(
            f"features have shapes {tuple(old.shape)} and {tuple(new.shape)}; allowed: the same (n, d)"
        )
    return old.float(), new.float()
