"""Several vehicles leave one after the other, each with most samples of a class (MPT; one record a departure)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib import seeds
from fedlib.data import Partition
from fedlib.data import partition as partitions
from fedlib.errors import InputError
from fedlib.experiments.federated import Bench
from fedlib.experiments.mpt_scenario import Departure as OneDeparture
from fedlib.experiments.mpt_scenario import bench_of, label_of, scenario_config, scores
from fedlib.experiments.mpt_tracking import tracker_options
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.features.embed import embed
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import MahalanobisNCM, prototypes, regularise
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, run_rounds
from fedlib.federation.tasks import ImageData
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import Record, depart, reconstruct
from fedlib.models import module_of
from fedlib.runs import Run, RunSpec, Store, Workspace


def several_departures(settings: MPTSettings, leaving: Sequence[tuple[int | str, int]]) -> Study:
    """Let vehicle 0, 1, ... leave with most samples of a class each: one run for each seed and fraction.

    After the departure of its vehicle a class is held out of training, as with one departure. The server keeps a
    record of each class that left; the classes that a record is written in are those with a live prototype. At
    a further departure the earlier records are written anew, from the prototypes that MPT has for them at that
    moment and the statistics of the vehicles that stay: otherwise the absence of the vehicle would look like
    drift to them.

    Columns: seed, remaining, rare_class, left (last round of its vehicle), method (mpt | ncm | frozen | oracle),
    round, phase (before | after the departure of the class), metric (rare_f1, prototype_error), value. All
    methods share the Mahalanobis readout, and in each of them the prototypes of all classes that left are the
    method's.

    Args:
        settings: of the experiment; their rare classes and departure round are not used.
        leaving: class (label or name) and last round of each vehicle that leaves, in the order of the vehicles.

    Raises:
        InputError: no departure, a class twice, fewer than two vehicles that stay, or a last round that is not
            inside the run.
    """
    bench = bench_of(settings)
    gone = {label_of(bench, name): last for name, last in leaving}
    if not leaving or len(gone) < len(leaving):
        raise InputError(
            f"leaving is {list(leaving)}; allowed: at least one departure, each with another class"
        )
    if settings.num_clients < len(gone) + 2:
        raise InputError(f"num_clients is {settings.num_clients}; allowed: at least two more than leave")
    for last in gone.values():
        if not 1 <= last < settings.rounds:
            raise InputError(f"last round is {last}; allowed: 1 to {settings.rounds - 1}")
    jobs = [(seed, left) for seed in range(settings.seeds) for left in settings.remaining_fractions]
    return Study.of(run_all(partial(_run, bench, settings, gone), jobs, settings.device))


def _run(
    bench: Bench, settings: MPTSettings, gone: Mapping[int, int], job: tuple[int, float], workers: int | None
) -> Run:
    seed, remaining = job
    first = next(iter(gone))
    config = scenario_config(settings, OneDeparture(seed, first, remaining))
    config = {k: v for k, v in config.items() if k not in ("rare_class", "departure_round")}
    config |= {
        "leaving": [list(pair) for pair in gone.items()],
        "mpt": tracker_options(settings).mpt.__dict__,
    }

    def compute(workspace: Workspace) -> None:
        split = share_out(bench.labels, settings, gone, remaining, seed)
        train = bench.part("train")
        population = Fleet.of([train.subset(indices) for indices in split.clients], gone)
        schedule = Rounds(rounds=settings.rounds, seed=seed, device=settings.device)
        folder = workspace.folder / "trajectory"
        trajectory = run_rounds(bench.task(), bench.method(), population, schedule, folder, workers=workers)
        server = Server(tracker_options(settings).mpt, gone)
        rows = [
            {"seed": seed, "remaining": remaining, **row}
            for number in trajectory.rounds[1:]
            for row in _round(bench, settings, split, server, number, trajectory.weights(number), seed)
        ]
        shutil.rmtree(folder)  # nothing else is read on it
        workspace.finish(pd.DataFrame(rows))

    checksums = {settings.dataset: bench.images.card.checksum}
    spec = RunSpec("mpt.several_departures", config, checksums, (__name__, module_of(settings.model)))
    return Store().compute(spec, compute)


def share_out(
    labels: np.ndarray, settings: MPTSettings, gone: Mapping[int, int], remaining: float, seed: int
) -> Partition:
    """Give vehicle j most samples of the j-th class of ``gone``, and the rest of it to vehicles that never leave.

    All other classes are split by Dirichlet, as with one departure.
    """
    start = partitions.dirichlet(labels, settings.num_clients, settings.alpha, seed)
    owner = np.empty(len(labels), dtype=np.int64)
    for vehicle, indices in enumerate(start.clients):
        owner[indices] = vehicle
    draw = seeds.rng(seed, "partition", "several-departures")
    for vehicle, label in enumerate(gone):
        own = draw.permutation(np.flatnonzero(labels == label))
        few = max(1, len(own) - round((1 - remaining) * len(own)))
        staying = settings.num_clients - len(gone)
        owner[own[few:]] = vehicle
        owner[own[:few]] = len(gone) + (draw.integers(staying) + np.arange(few)) % staying
    clients = tuple(np.flatnonzero(owner == vehicle) for vehicle in range(settings.num_clients))
    return Partition(clients, len(labels), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Fleet:
    """Vehicles of which some leave, and the rest hold out the classes that left: a ``Population``.

    Attributes:
        stages: first round and vehicles of each period between two departures, ascending.
    """

    stages: tuple[tuple[int, Clients], ...]

    @classmethod
    def of(cls, datasets: Sequence[ImageData], gone: Mapping[int, int]) -> Fleet:
        """Return the fleet.

        Args:
            datasets: of vehicle 0, 1, ...
            gone: label and last round of the classes that leave, in the order of the vehicles.
        """
        leaves = {vehicle: last for vehicle, last in enumerate(gone.values())}
        stages = []
        for start in sorted({1, *(last + 1 for last in gone.values())}):
            out = [label for label, last in gone.items() if last < start]
            kept = [data.subset(np.flatnonzero(~np.isin(data.labels, out))) for data in datasets]
            stages.append((start, Clients(kept, last_round=leaves)))
        return cls(tuple(stages))

    def __len__(self) -> int:
        return len(self.stages[0][1])

    def present(self, round: int) -> tuple[int, ...]:
        """Return the vehicles that have not left."""
        return self._at(round).present(round)

    def data(self, client: int, round: int) -> ImageData:
        """Return the training data of a vehicle in this round."""
        found: ImageData = self._at(round).data(client, round)  # type: ignore[assignment]
        return found

    def _at(self, round: int) -> Clients:
        return next(clients for start, clients in reversed(self.stages) if start <= round)


class Server:
    """What the server of MPT remembers over several departures.

    Args:
        options: choices of the method.
        gone: label and last round of the classes that leave.
    """

    def __init__(self, options: MPTOptions, gone: Mapping[int, int]) -> None:
        self.options, self.gone = options, dict(gone)
        self.records: dict[int, Record] = {}
        self.excess: dict[int, float | None] = {}
        self.frozen: dict[int, Tensor] = {}

    def departed(self, number: int) -> tuple[int, ...]:
        """Return the classes that have left before this round, ascending."""
        return tuple(sorted(label for label, last in self.gone.items() if last < number))

    def follow(self, moments: ClassMoments, departed: tuple[int, ...]) -> dict[int, Tensor]:
        """Return MPT's prototype of each class that left, from the statistics of the vehicles present."""
        means, found = prototypes(moments), {}
        for label in departed:
            result = reconstruct(
                self.records[label], means, int(moments.count[label]), self.options,
                covariance=moments.covariance(), departed=departed, excess=self.excess.get(label),
            )  # fmt: skip
            self.excess[label], found[label] = result.excess, result.prototype
        return found

    def depart(
        self, number: int, everyone: ClassMoments, staying: ClassMoments, tracked: Mapping[int, Tensor]
    ) -> None:
        """Write records for the classes whose vehicle leaves after this round, and the earlier ones anew.

        Args:
            number: of the round.
            everyone: statistics of the vehicles present in this round.
            staying: of those that stay; no class that left or leaves is in the scatter.
            tracked: MPT's prototypes of the classes that left before.
        """
        leaving = [label for label, last in self.gone.items() if last == number]
        if not leaving:
            return
        self.frozen |= {label: prototypes(everyone)[label].clone() for label in leaving}
        away = (*tracked, *leaving)
        now = dict(tracked) | {label: self.frozen[label] for label in leaving}
        for label, prototype in now.items():
            self.records[label] = depart(
                label, prototypes(staying), prototype, self.options, covariance=staying.covariance(),
                also_departed=tuple(other for other in away if other != label),
            )  # fmt: skip


def _round(
    bench: Bench,
    settings: MPTSettings,
    split: Partition,
    server: Server,
    number: int,
    weights: Any,
    seed: int,
) -> Iterator[dict[str, Any]]:
    model = bench.build_model(seed)
    model.load_state_dict(weights)
    train, test = bench.part("train"), bench.part("test")
    z, z_test = (embed(model, bench.normalizer.apply(part.images)) for part in (train, test))
    y, departed = torch.tensor(train.labels), server.departed(number)
    vehicles = {vehicle: last for vehicle, last in enumerate(server.gone.values())}

    def merged(absent: int, leave_out: tuple[int, ...]) -> ClassMoments:
        """Statistics of the vehicles that are present in round ``absent``."""
        parts = []
        for vehicle, indices in enumerate(split.clients):
            if vehicles.get(vehicle, absent) >= absent:
                own = ClassMoments(bench.num_classes, z.shape[1], leave_out=leave_out)
                own.update(z[torch.tensor(indices)], y[torch.tensor(indices)])
                parts.append(own)
        return ClassMoments.merge(parts)

    here = merged(number, departed)
    tracked = server.follow(here, departed)
    oracle = {label: z[y == label].double().mean(0) for label in departed}
    sigma = regularise(here.covariance(), settings.rho)
    for method, own in {"mpt": tracked, "ncm": {}, "frozen": server.frozen, "oracle": oracle}.items():
        means = prototypes(here).clone()
        for label in departed:
            means[label] = own.get(label, means[label])
        predicted = MahalanobisNCM(means, sigma).predict(z_test).numpy()
        for label, last in server.gone.items():
            phase = "after" if label in departed else "before"
            where = {"rare_class": label, "left": last, "method": method, "round": number, "phase": phase}
            f1 = scores(test.labels, predicted, label, bench.num_classes)["rare_f1"]
            yield {**where, "metric": "rare_f1", "value": f1}
            if label in departed and method != "oracle":
                error = MahalanobisNCM(oracle[label][None], sigma).distances(means[label][None]).sqrt()
                yield {**where, "metric": "prototype_error", "value": float(error)}
    server.depart(number, here, merged(number + 1, server.departed(number + 1)), tracked)
