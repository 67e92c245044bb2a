"""MPT and MPT-lite as the server and the vehicles run them (Jang et al. 2026, section IV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.mpt import lite
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import Reconstruction, Record, depart, reconstruct
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle


class MPT(Tracker):
    """The full method: affine weights, transported residual, measured residual, reliability."""

    name: ClassVar[str] = "mpt"
    sends_scatter: ClassVar[bool] = True

    def __init__(self, options: MPTOptions, *, part: Literal["all", "in_span"] = "all") -> None:
        self.options, self.part = options, part
        self.record: Record | None = None
        self.excess: float | None = None

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store weights, residual and covariance."""
        self.record = depart(
            everyone.rare_class,
            staying.means,
            everyone.rare_mean,
            self.options,
            covariance=self.covariance(staying),
            energy=self.energy(staying, sent),
        )

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the reconstructed prototype."""
        if self.record is None:
            raise InputError(f"{self.name} was asked to follow a departure that it did not see")
        found = reconstruct(
            self.record,
            server.means,
            server.count,
            self.options,
            covariance=self.covariance(server),
            energy=self.energy(server, sent),
            excess=self.excess,
        )
        self.excess = found.excess
        vectors = {"in_span": found.in_span, "residual": found.residual, "predicted": found.predicted}
        if found.measured is not None:
            vectors["measured"] = found.measured
        return Outcome(
            prototype=found.in_span if self.part == "in_span" else found.prototype,
            details=_details(found),
            vectors=vectors,
        )

    def covariance(self, server: Round) -> Tensor | None:
        """Return what the residual is transported by."""
        return server.covariance

    def energy(self, server: Round, sent: Sequence[State]) -> float | None:
        """Return the number that MPT-lite scales by instead."""
        return None


class MPTEuclidean(MPT):
    """MPT read by Euclidean distance, as MPT-lite is (ours): the same prototypes, another readout."""

    name: ClassVar[str] = "mpt_euclidean"
    native: ClassVar[Native] = "euclidean"


class MPTLite(MPT):
    """The scalar version: one number instead of a covariance, Euclidean readout."""

    name: ClassVar[str] = "mpt_lite"
    native: ClassVar[Native] = "euclidean"
    sends_scatter: ClassVar[bool] = False

    def downlink(self, server: Round) -> State:
        """Return the prototypes, which vehicles need to measure their spread beside them."""
        return {"prototypes": server.basis.float()} if self._inside else {}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the one number."""
        energy = lite.client_energy(
            vehicle.moments, vehicle.features, vehicle.labels, received.get("prototypes"),
            self.options.lambda_rel,
        )  # fmt: skip
        return {"energy": torch.tensor(energy, dtype=torch.float32)}

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 1."""
        return super().floats_up(classes, dim, samples) + 1

    @property
    def _inside(self) -> bool:
        return lite.in_complement(self.options.lite_scalar)

    def covariance(self, server: Round) -> Tensor | None:
        """Return None: no covariance is sent."""
        return None

    def energy(self, server: Round, sent: Sequence[State]) -> float | None:
        """Return the spread of all vehicles together."""
        energies = [float(message["energy"]) for message in sent]
        basis = server.basis.float() if self._inside else None  # as it was sent
        return lite.merged_energy(energies, server.parts, basis, self.options.lambda_rel)


class MPTLiteDiagonal(MPTLite):
    """MPT-lite whose vehicles send each feature's spread too, d numbers, for a readout that is scaled by it."""

    name: ClassVar[str] = "lite_diag"
    native: ClassVar[Native] = "diagonal"
    answers_before: ClassVar[bool] = True

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the one number and the d squares."""
        squares = lite.client_squares(vehicle.moments, vehicle.features, vehicle.labels)
        return super().uplink(vehicle, received, kept) | {"squares": squares.float()}

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the reconstructed prototype and the features' variances."""
        return replace(super().follow(server, sent), variances=_variances(server, sent))

    def before(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the class means and the features' variances."""
        return replace(super().before(server, sent), variances=_variances(server, sent))

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 1 + d."""
        return super().floats_up(classes, dim, samples) + dim

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C (d + 1) for the head, and (C - 1) d where vehicles need the prototypes first."""
        return classes * (dim + 1) + ((classes - 1) * dim if self._inside else 0)


def _variances(server: Round, sent: Sequence[State]) -> Tensor:
    return lite.merged_variances([message["squares"] for message in sent], server.parts)


def _details(found: Reconstruction) -> dict[str, float]:
    return {"alpha": found.alpha, "prediction_weight": 1 - found.alpha, "refitted": float(found.refitted)}
