"""SDC: move a prototype with the features around it (semantic drift compensation, Yu et al. 2020).

Every sample is embedded by the old and the new backbone; the prototype moves by the mean of the differences,
weighted by how near the old feature was to it. The weighted mean is a ratio of sums, so that vehicles need not
send features: each sends its two sums with the exponent that it scaled them by, and the server's result is that
of all features in one place. The MPT paper counts SDC among the methods that need them centrally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.mpt import checks
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle


@dataclass(frozen=True)
class PartialShift:
    """Sums of one vehicle, scaled by e^-largest.

    Attributes:
        largest: log of the largest weight; minus infinity without samples.
        numerator: sum of omega_i delta_i, (d,).
        denominator: sum of omega_i.
    """

    largest: float
    numerator: Tensor
    denominator: float

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the message: d + 2 numbers, float32 (the exponent keeps sums of far vehicles in range)."""
        return {
            "largest": torch.tensor(self.largest, dtype=torch.float32),
            "numerator": self.numerator.float(),
            "denominator": torch.tensor(self.denominator, dtype=torch.float32),
        }


def bandwidth(squared_norm_mean: float, sigma_rel: float) -> float:
    """Return sigma = sigma_rel * RMS norm of the old features: the authors' sigma where features have length
    one.

    Args:
        squared_norm_mean: mean of ||z_old||^2 over the samples of all vehicles.
        sigma_rel: the authors use 0.2 to 0.3.

    Raises:
        InputError: not positive.
    """
    if not sigma_rel > 0 or not squared_norm_mean > 0:
        raise InputError(
            f"sigma_rel is {sigma_rel!r} and the mean squared norm {squared_norm_mean!r}; allowed: > 0"
        )
    return sigma_rel * squared_norm_mean**0.5


def partial_shift(old: Tensor, new: Tensor, prototype: Tensor, sigma: float) -> PartialShift:
    """Return a vehicle's sums.

    Args:
        old: (n, d), features under the old backbone; n may be 0.
        new: (n, d), the same samples under the new one.
        prototype: (d,), under the old backbone.
        sigma: bandwidth, > 0.

    Raises:
        InputError: shapes that do not fit, or sigma not positive.
    """
    if old.shape != new.shape or old.ndim != 2:
        raise InputError(
            f"features have shapes {tuple(old.shape)} and {tuple(new.shape)}; allowed: the same (n, d)"
        )
    if not sigma > 0:
        raise InputError(f"sigma is {sigma!r}; allowed: above 0")
    p = checks.vector("prototype", prototype, old.shape[1])
    if len(old) == 0:
        return PartialShift(float("-inf"), torch.zeros_like(p), 0.0)
    z, delta = old.double(), new.double() - old.double()
    # omega_i = exp(-||z_i - phat||^2 / (2 sigma^2)), in logarithms
    logs = -(z - p).square().sum(dim=1) / (2 * sigma**2)
    largest = float(logs.max())
    omega = (logs - largest).exp()
    return PartialShift(largest, omega @ delta, float(omega.sum()))


def combine(parts: Sequence[PartialShift]) -> Tensor:
    """Return the shift sum omega_i delta_i / sum omega_i over all vehicles, (d,); zero without any sample.

    Raises:
        InputError: no parts.
    """
    if not parts:
        raise InputError("nothing to combine; allowed: at least one part")
    largest = max(part.largest for part in parts)
    numerator = torch.zeros_like(parts[0].numerator)
    denominator = 0.0
    for part in parts:
        if part.denominator:
            scale = float(torch.tensor(part.largest - largest, dtype=torch.float64).exp())
            numerator += scale * part.numerator
            denominator += scale * part.denominator
    # phat_t = phat_{t-1} + sum omega_i delta_i / sum omega_i
    return numerator / denominator if denominator else numerator


def shift(old: Tensor, new: Tensor, prototype: Tensor, sigma: float) -> Tensor:
    """Return the shift of one set of samples, (d,); arguments as in :func:`partial_shift`."""
    return combine([partial_shift(old, new, prototype, sigma)])


class SDCTracker(Tracker):
    """Semantic drift compensation, from pairs in one place or from the vehicles' sums: the same result.

    Args:
        sigma_rel: bandwidth relative to the features' length; None takes the median distance of the old features
            to the prototype, which no sums over vehicles give.
        chain: move the last prototype from round to round; else that of the departure, by pairs (f_t0, f_t).
        federated: send two sums instead of all pairs.
    """

    name: ClassVar[str] = "sdc"
    native: ClassVar[Native] = "euclidean"
    old_model: ClassVar[bool] = True

    def __init__(self, sigma_rel: float | None, *, chain: bool = True, federated: bool = False) -> None:
        if sigma_rel is None and federated:
            raise InputError(
                "sigma_rel is None (median distance); allowed for SDC from sums: a number above 0"
            )
        self.sigma_rel, self.chain, self.federated = sigma_rel, chain, federated
        self.aggregates = federated  # pairs in one place are no sums over vehicles
        self.prototype: Tensor | None = None
        self.sigma = 0.0

    def downlink(self, server: Round) -> State:
        """Return the last prototype and the bandwidth, which the vehicles' sums need."""
        if not self.federated or self.prototype is None:
            return {}
        return {"prototype": self.prototype.float(), "sigma": torch.tensor(self.sigma, dtype=torch.float32)}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the vehicle's pairs, or its two sums and the sum of squared lengths for the next bandwidth."""
        old, new = vehicle.pairs(self.chain)
        squares = {"squares": new.double().square().sum().float(), "samples": torch.tensor(len(new))}
        if self.prototype is None:
            return squares
        if not self.federated:
            return {"old": old, "new": new}
        own = partial_shift(old, new, received["prototype"], float(received["sigma"]))
        return own.to_tensors() | squares

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype, and the bandwidth of the first pairs."""
        self.prototype = everyone.rare_mean.clone()
        self._set_bandwidth(sum(float(m["squares"]) for m in sent), sum(int(m["samples"]) for m in sent))

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_{t-1} + sum omega_i delta_i / sum omega_i."""
        assert self.prototype is not None
        if self.federated:
            move = combine(
                [
                    PartialShift(float(m["largest"]), m["numerator"].double(), float(m["denominator"]))
                    for m in sent
                ]
            )
            total, samples = sum(float(m["squares"]) for m in sent), sum(int(m["samples"]) for m in sent)
        else:
            old, new = (torch.cat([m[key] for m in sent]) for key in ("old", "new"))
            if self.sigma_rel is None:
                self.sigma = float((old.double() - self.prototype).norm(dim=1).median())
            move = shift(old, new, self.prototype, self.sigma)
            total, samples = float(new.double().square().sum()), len(new)
        moved = self.prototype + move
        if self.chain:
            self.prototype = moved
            self._set_bandwidth(total, samples)
        return Outcome(prototype=moved)

    def _set_bandwidth(self, squares: float, samples: int) -> None:
        if self.sigma_rel is not None:
            self.sigma = bandwidth(squares / max(1, samples), self.sigma_rel)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 2 n_k d, or + d + 1 from sums."""
        return super().floats_up(classes, dim, samples) + (dim + 1 if self.federated else 2 * samples * dim)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C d, and d for the tracked prototype where sums are sent."""
        return super().floats_down(classes, dim) + (dim if self.federated else 0)
