"""LDC: learn a linear map from old to new features and move the prototype with it (Gomez-Villa et al. 2024).

``sgd`` is the authors' way: the map is trained by Adam on pairs of features, which have to be in one place.
``ridge`` is the closed form: two sums of outer products, which add up exactly over vehicles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features import symmetric
from fedlib.methods.mpt import checks
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle

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


class LDCTracker(Tracker):
    """Learnable drift compensation: a linear map, trained on pairs in one place or in closed form from sums.

    Args:
        options: of the trained map.
        ridge: the closed form.
    """

    name: ClassVar[str] = "ldc"
    native: ClassVar[Native] = "euclidean"
    old_model: ClassVar[bool] = True

    def __init__(self, options: LDC, *, ridge: bool = False) -> None:
        self.options, self.ridge = options, ridge
        self.aggregates = ridge  # see SDC
        self.prototype: Tensor | None = None

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the vehicle's pairs, or its sums of outer products."""
        if self.prototype is None:
            return {}
        old, new = vehicle.pairs()
        if not self.ridge:
            return {"old": old, "new": new}
        s_no, s_oo = sums(old, new)
        return {"s_no": s_no.float(), "s_oo": symmetric.pack(s_oo).float()}

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return g(phat_{t-1})."""
        assert self.prototype is not None
        steps = 0
        if self.ridge:
            s_no = torch.stack([m["s_no"].double() for m in sent]).sum(0)
            s_oo = symmetric.unpack(torch.stack([m["s_oo"].double() for m in sent]).sum(0))
            matrix = fit_ridge(s_no, s_oo)
        else:
            old, new = (torch.cat([m[side] for m in sent]) for side in ("old", "new"))
            matrix, steps = fit_sgd(old, new, self.options, server.seed, server.number)
        self.prototype = matrix @ self.prototype
        return Outcome(prototype=self.prototype, steps=steps)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 2 n_k d, or + d^2 + d(d + 1)/2 in closed form."""
        extra = dim**2 + dim * (dim + 1) // 2 if self.ridge else 2 * samples * dim
        return super().floats_up(classes, dim, samples) + extra
