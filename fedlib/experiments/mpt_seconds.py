"""Seconds: what each method adds to a round, and what MPT asks of the server for long features (section V-B)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.mpt_replay import Clock, Replay
from fedlib.experiments.mpt_scenario import (
    LEAVING,
    Departure,
    bench_of,
    departures,
    scenario_config,
    split_of,
    training_run,
)
from fedlib.experiments.mpt_tracking import HEADLINE, tracker_options
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import MahalanobisNCM, regularise
from fedlib.federation.messages import Broadcast
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.rounds import Trajectory
from fedlib.methods.mpt.low_rank import low_rank, transport_low_rank
from fedlib.methods.mpt.trackers import TrackerOptions, entry
from fedlib.methods.mpt.tracking import Round
from fedlib.methods.mpt.transport import prepare, transport
from fedlib.models import module_of
from fedlib.runs import Run, RunSpec, Store, Workspace

TIMED_ROUNDS = 10  # rounds after the departure that are timed
WARM_UP = 2  # the first ones, which are not counted: caches and lazy imports
REPEATS = 2  # of a timed server step


def timing(settings: MPTSettings, methods: Sequence[str] = HEADLINE) -> Study:
    """Measure the extra work of a round: one run a seed, for the first rare class and remaining fraction.

    All is done in one thread and counted in processor seconds, which are those of the clock where nothing else
    runs. They depend on the machine, so repetitions differ; a stored run keeps what it found. Columns: seed,
    method, backbone, metric, value. Mean seconds of a round after the departure: ``client_seconds`` (all vehicles,
    one after the other: embedding, under the earlier model too where the method keeps one, class statistics,
    and the method's own work), ``server_seconds``, ``extra_seconds`` (both), and ``round_seconds``, the local
    training of the vehicles that stay, the same for all methods.
    """
    bench = bench_of(settings)
    found = departures(bench, settings)
    chosen = [d for d in found if (d.rare_class, d.remaining) == (found[0].rare_class, found[0].remaining)]
    names = [name for name in methods if name not in ("oracle", "no_departure")]
    return Study.of([_timing_run(bench, settings, departure, names) for departure in chosen])


def _timing_run(bench: Bench, settings: MPTSettings, departure: Departure, names: Sequence[str]) -> Run:
    config = scenario_config(settings, departure) | {"methods": list(names), "rounds_timed": TIMED_ROUNDS}
    config |= {"mpt": tracker_options(settings).mpt.__dict__}

    def compute(workspace: Workspace) -> None:
        training = training_run(bench, settings, departure, "holdout", 1)
        rows = list(_timed(bench, settings, departure, names, trajectory_of(training)))
        frame = pd.DataFrame(rows, columns=["method", "metric", "value"])
        workspace.finish(frame.assign(seed=departure.seed, backbone=settings.model))

    checksums = {settings.dataset: bench.images.card.checksum}
    spec = RunSpec("mpt.timing", config, checksums, (__name__, module_of(settings.model)))
    return Store().compute(spec, compute)


def _timed(
    bench: Bench,
    settings: MPTSettings,
    departure: Departure,
    names: Sequence[str],
    trajectory: Trajectory,
) -> Iterator[tuple[str, str, float]]:
    """Yield (method, metric, seconds of a round)."""
    options = tracker_options(settings)
    trackers = {name: entry(name).make(options) for name in names}
    replay = Replay(bench, settings, departure, "holdout", trajectory, timed=True)
    start = min(settings.departure_round + WARM_UP, settings.rounds - 1)
    rounds = 0
    for view in replay.views(trackers, until=start + TIMED_ROUNDS):
        rounds += view.server.number > start
        if view.server.number == start:
            replay.clock = Clock()
    training = _training_seconds(bench, settings, departure, trajectory.weights(start))
    spent = {key: seconds / rounds for key, seconds in replay.clock.seconds.items()}
    for name, tracker in trackers.items():
        client = spent.get((name, "client"), 0.0)
        if tracker.embeds:
            client += spent["all", "embed"] * (2 if tracker.old_model else 1)
        if tracker.sends_means:
            client += spent["all", "moments" if tracker.sends_scatter else "means"]
        server = spent.get((name, "server"), 0.0)
        yield name, "round_seconds", training
        yield name, "client_seconds", client
        yield name, "server_seconds", server
        yield name, "extra_seconds", client + server


def _training_seconds(bench: Bench, settings: MPTSettings, departure: Departure, weights: State) -> float:
    """Return the seconds of one round of local training: all vehicles that stay, one after the other."""
    task, method, train = bench.task(), bench.method(), bench.part("train")
    message = Broadcast(round=settings.departure_round + 1, weights=weights)
    scratch = FlatModel(task.build_model(departure.seed))
    kept = np.flatnonzero(bench.labels != departure.rare_class)  # the rare samples that remain are held out
    spent = 0.0
    for vehicle, indices in enumerate(split_of(bench, settings, departure).clients):
        own = np.intersect1d(indices, kept)
        if vehicle == LEAVING or not len(own):
            continue
        data = train.subset(own)
        start = time.process_time()
        method.client_update(task, scratch, vehicle, data, message, {}, departure.seed)
        spent += time.process_time() - start
    return spent


def server_scaling(
    dims: Sequence[int] = (128, 192, 512, 1024, 1280), *, rank: int = 32, repetitions: int = 3
) -> Study:
    """Time what MPT's server does in a round after the departure, for features of length d and ten classes.

    One run a seed. What is measured depends on the machine, so repetitions differ; a stored run keeps what it
    found. Columns: seed, d, metric (``seconds``), value, and form: ``round`` is the whole step from the messages
    of ten vehicles to the head that they get (read, merge, transport, weight, readout); the names of transports
    are that part alone, and ``low rank`` is ``ot`` between covariances of ``rank`` directions that the vehicles'
    factors give directly.

    Args:
        dims: feature lengths.
        rank: directions of the low-rank form.
        repetitions: number of runs.

    Raises:
        InputError: a length below 2, or not above ``rank``.
    """
    for d in dims:
        if d <= max(rank, 2):
            raise InputError(f"feature length is {d}; allowed: above rank = {rank}")

    def run(seed: int) -> Run:
        config = {"seed": seed, "dims": list(dims), "rank": rank, "dataset": None}

        def compute(workspace: Workspace) -> None:
            rows = [
                {"seed": seed, "d": d, "form": form, "metric": "seconds", "value": value}
                for d in dims
                for form, value in _server_seconds(d, rank, seed)
            ]
            workspace.finish(pd.DataFrame(rows))

        return Store().compute(RunSpec("mpt.server_scaling", config, {}, (__name__,)), compute)

    return Study.of([run(seed) for seed in range(repetitions)])


def _server_seconds(d: int, rank: int, seed: int) -> Iterator[tuple[str, float]]:
    """Yield (form, seconds)."""
    draw = seeds.torch_generator(seed, "scaling", d)
    yield "round", _seconds(_server_round(d, draw))
    s0, st = (_covariance(d, draw) for _ in range(2))
    e = torch.randn(d, generator=draw, dtype=torch.float64)
    for kind in ("ot", "zca", "chol", "scalar"):
        yield kind, _seconds(partial(transport, prepare(kind, s0), st, e))
    a, b = low_rank(s0, rank), low_rank(st, rank)
    yield "low rank", _seconds(partial(transport_low_rank, "ot", a, b, e))


def _server_round(d: int, draw: torch.Generator) -> Callable[[], object]:
    """Return MPT's step of the server, ready to be called: ten vehicles, ten classes, the last of them rare."""
    classes, rare = 10, 9
    centres = 3 * torch.randn(classes, d, generator=draw)

    def messages(round: int) -> list[dict[str, torch.Tensor]]:
        found = []
        for _ in range(10):
            labels = torch.arange(classes).repeat_interleave(20)
            z = (1 + 0.05 * round) * (centres[labels] + torch.randn(len(labels), d, generator=draw))
            moments = ClassMoments(classes, d, leave_out=(rare,))
            moments.update(z, labels)
            found.append(moments.to_tensors())
        return found

    def server(sent: Sequence[dict[str, torch.Tensor]]) -> Round:
        parts = [ClassMoments.from_tensors(message, classes, leave_out=(rare,)) for message in sent]
        return Round(1, rare, parts, (torch.zeros(classes, d), torch.zeros(classes)))

    tracker = entry("mpt").make(TrackerOptions())
    first = server(messages(0))
    tracker.departure(first, first, [])
    sent = messages(1)

    def step() -> object:
        now = server(sent)
        outcome = tracker.follow(now, [])
        assert outcome.prototype is not None
        return MahalanobisNCM(now.with_prototype(outcome.prototype), now.regularised).as_linear_head()

    return step


def _covariance(d: int, draw: torch.Generator) -> torch.Tensor:
    root = torch.randn(d, 2 * d, generator=draw, dtype=torch.float64)
    decay = torch.exp(-torch.arange(d, dtype=torch.float64) * 8 / d)
    return regularise((root @ root.T / (2 * d)) * decay.sqrt()[:, None] * decay.sqrt(), 0.01)


def _seconds(function: Callable[[], object]) -> float:
    """Return the least of a few times: what disturbs a measurement only adds to it."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)
