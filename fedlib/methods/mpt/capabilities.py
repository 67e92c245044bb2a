"""Which demands each method makes, measured where that is possible: MPT's comparison of capabilities (section
V-A).

The summary of the paper defines four columns and does not print the cells: drift compensation after the
departure (PD), heterogeneous federations (HFL), no features of single samples stored (PF), no additional
training (TF). PF and TF are measured here: two vehicles that differ in nothing but their number of samples run
one round of each method; what changes its size with that number is data of single samples. PD and HFL are
declared by each method and tested apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.features.moments import ClassMoments
from fedlib.methods.mpt.baselines.plain import Oracle
from fedlib.methods.mpt.trackers import TrackerOptions, entry
from fedlib.methods.mpt.tracking import Round, State, Tracker, Vehicle

_CLASSES, _DIM, _RARE = 4, 6, 3
_FEW, _MANY = 12, 18  # samples of each class on the two kinds of vehicle; all of them fit among the exemplars


@dataclass(frozen=True)
class Capabilities:
    """One row of the table.

    Attributes:
        method: name.
        follows_drift: PD: ``yes``, ``no``, or ``partial``: it estimates anew from the samples that remain.
        aggregates: HFL: it is built from statistics that add up over vehicles; pairs of features that have to be
            in one place do not.
        sends_samples: names of message tensors whose size is that of the samples.
        stores_samples: the same for what a vehicle keeps.
        keeps_model: whether a vehicle keeps an earlier model.
        server_steps: training steps of the server in a round.
        distils: whether the vehicles train on an additional loss.
    """

    method: str
    follows_drift: str
    aggregates: bool
    sends_samples: tuple[str, ...]
    stores_samples: tuple[str, ...]
    keeps_model: bool
    server_steps: int
    distils: bool

    @property
    def per_sample_free(self) -> bool:
        """PF: no data of single samples is sent, or kept for the method."""
        return not (self.sends_samples or self.stores_samples)

    @property
    def training_free(self) -> bool:
        """TF: no training beyond that of the federation."""
        return self.server_steps == 0 and not self.distils


def table(methods: Sequence[str], options: TrackerOptions | None = None) -> list[Capabilities]:
    """Return one row for each method.

    Args:
        methods: names in ``trackers.METHODS``.
        options: choices of the methods.

    Raises:
        InputError: unknown method.
    """
    return [measure(name, options or TrackerOptions()) for name in methods]


def measure(name: str, options: TrackerOptions) -> Capabilities:
    """Run a departure and one round of a method on tiny vehicles of two sizes and see what it sends and
    keeps."""
    line = entry(name)
    small, large = (_one_round(line.make(options), size) for size in (_FEW, _MANY))
    tracker = line.make(options)
    return Capabilities(
        method=name,
        follows_drift=tracker.compensates,
        aggregates=tracker.aggregates,
        sends_samples=_changed(small.sent, large.sent),
        stores_samples=_changed(small.kept, large.kept),
        keeps_model=tracker.old_model,
        server_steps=large.steps,
        distils=line.training == "distil",
    )


@dataclass(frozen=True)
class _Seen:
    sent: State
    kept: State
    steps: int


def _one_round(tracker: Tracker, size: int) -> _Seen:
    if isinstance(tracker, Oracle):
        tracker.prototype = torch.zeros(_DIM, dtype=torch.float64)
    everyone = _round(1, _vehicles(size, staying=False))
    leaving = _vehicles(size, staying=True)
    staying = _round(1, leaving)
    tracker.departure(everyone, staying, [tracker.uplink(v, tracker.downlink(staying), {}) for v in leaving])
    kept = [tracker.keep(vehicle) for vehicle in leaving]
    vehicles = _vehicles(size, staying=True, drift=1.1)
    server = _round(2, vehicles)
    received = tracker.downlink(server)
    sent = [tracker.uplink(vehicle, received, own) for vehicle, own in zip(vehicles, kept, strict=True)]
    outcome = tracker.follow(server, sent)
    return _Seen(tracker.message(vehicles[0], sent[0]), kept[0], outcome.steps)


def _vehicles(size: int, *, staying: bool, drift: float = 1.0) -> list[Vehicle]:
    found = []
    for number in range(3):
        labels = torch.arange(_CLASSES).repeat_interleave(size)
        draw = seeds.torch_generator(0, "capabilities", number, size)
        z = 3 * torch.eye(_CLASSES, _DIM)[labels] + torch.randn(len(labels), _DIM, generator=draw)
        moments = ClassMoments(_CLASSES, _DIM, leave_out=(_RARE,) if staying else ())
        moments.update(drift * z, labels)
        found.append(Vehicle(number, labels, drift * z, moments, before=z, at_departure=z))
    return found


def _round(number: int, vehicles: Sequence[Vehicle]) -> Round:
    head: tuple[Tensor, Tensor] = (torch.zeros(_CLASSES, _DIM), torch.zeros(_CLASSES))
    return Round(number, _RARE, [vehicle.moments for vehicle in vehicles], head)


def _changed(small: State, large: State) -> tuple[str, ...]:
    return tuple(name for name in large if name not in small or small[name].shape != large[name].shape)
