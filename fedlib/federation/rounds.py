"""The round loop: broadcast, client updates, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from fedlib import files, seeds
from fedlib.errors import InputError
from fedlib.federation.aggregation import EmptyRound
from fedlib.federation.engine import Engine, Work, one_thread, worker_count
from fedlib.federation.growing import GrowingTable
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Method, Server
from fedlib.federation.model_state import State, check_same_model, model_state
from fedlib.federation.partial_round import PartialRound
from fedlib.federation.population import Population, sample_clients
from fedlib.federation.tasks import Data, Task

log = logging.getLogger(__name__)

_METRICS = ("round", "client", "split", "metric", "value")
_LEDGER = ("round", "direction", "kind", "messages", "bytes")


@dataclass(frozen=True)
class Rounds:
    """How long and how often.

    Attributes:
        rounds: number of rounds.
        seed: seed of everything random in the run.
        participation: share of the present clients that takes part in a round, in (0, 1].
        evaluate_every: the global model is evaluated after every so many rounds, and after the last.
        keep: store the global model of ``all`` rounds, for readouts that come later, or the ``last`` only.
        device: ``cpu`` or ``cuda``.
    """

    rounds: int
    seed: int
    participation: float = 1.0
    evaluate_every: int = 1
    keep: Literal["all", "last"] = "all"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("rounds", "evaluate_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}; allowed: an integer >= 1")
        seeds.integer(self.seed)
        if not 0 < self.participation <= 1:
            raise InputError(f"participation is {self.participation!r}; allowed: above 0 and at most 1")
        if self.keep not in ("all", "last"):
            raise InputError(f"keep is {self.keep!r}; allowed: all, last")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"device is {self.device!r}, but no GPU is found; allowed here: cpu")


@dataclass(frozen=True)
class Trajectory:
    """A finished run of the round loop, on disk.

    Attributes:
        folder: where its files are: ``global/round-0000.safetensors`` (initial model) and so on,
            ``rounds.csv`` (metrics) and ``ledger.csv`` (bytes).
    """

    folder: Path

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose global model is stored, ascending; 0 is the initial model."""
        return tuple(
            sorted(int(path.stem.removeprefix("round-")) for path in (self.folder / "global").glob("round-*"))
        )

    def weights(self, round: int) -> State:
        """Return the global model after ``round``.

        Raises:
            InputError: if that round is not stored.
        """
        if round not in self.rounds:
            raise InputError(f"round is {round}; stored rounds: {self.rounds[0]} to {self.rounds[-1]}")
        return files.read_tensors(_global(self.folder, round))

    def metrics(self) -> pd.DataFrame:
        """Return all metrics: round, client (-1: the server), split, metric, value."""
        return files.read_table(self.folder / "rounds.csv")

    def ledger(self) -> pd.DataFrame:
        """Return the bytes of all messages: round, direction (up, down), kind, messages, bytes."""
        return files.read_table(self.folder / "ledger.csv")


def run_rounds(
    task: Task,
    method: Method,
    population: Population,
    settings: Rounds,
    folder: Path,
    *,
    evaluation: Mapping[str, Data] | None = None,
    client_evaluation: Mapping[int, str] | None = None,
    initial: State | None = None,
    start: Trajectory | None = None,
    workers: int | None = None,
) -> Trajectory:
    """Run a federation, or go on with an interrupted one, and return its trajectory.

    After each round everything that the next one needs is on disk, and in a long round the updates that have come
    in (:class:`~fedlib.federation.partial_round.PartialRound`), so a run that is killed at any moment and started
    again with the same arguments ends with the same bits.

    Args:
        task: what is learned.
        method: how; see ``fedlib.methods``.
        population: who takes part.
        settings: rounds, seed, participation.
        folder: the run's files, and its checkpoint while it is unfinished.
        evaluation: test sets by name, for the global model.
        client_evaluation: for each client id the name of the set on which its personal model is evaluated.
        initial: initial global model; by default the task's model from the run's seed.
        start: a finished run with the same method, initial model and settings but fewer rounds, in which the
            population, too, was that of this run. Its rounds are taken over instead of computed again; the bits
            of the result are the same.
        workers: processes; None means ``FEDLIB_WORKERS``, else one for each core.

    Raises:
        InputError: bad settings, ``initial`` of another model, a round in which nobody is present, or a folder
            that holds another run; a ``start`` of another run, or one that does not end before this one.
        EmptyRound: no client of a round has a sample.
        Exception: an error in a client surfaces as it is, with client and round in its notes.
    """
    sets = dict(evaluation or {})
    local_sets = dict(client_evaluation or {})
    for client, name in local_sets.items():
        if name not in sets:
            raise InputError(
                f"client {client} is evaluated on {name!r}; evaluation sets: {', '.join(sets) or 'none'}"
            )
    for name, data in sets.items():
        if not len(data):
            raise InputError(f"evaluation set {name!r} is empty")
    for round in range(1, settings.rounds + 1):
        if not population.present(round):
            raise InputError(f"round {round} of {settings.rounds} has no client: all have left")
    work = Work(task, method, population, sets, settings.seed, settings.device)
    with one_thread():
        first = model_state(task.build_model(settings.seed))
        if initial is not None:
            check_same_model(initial, first)
            first = dict(initial)
        loop = _Loop(method, population, settings, Path(folder), first, start)
        if loop.done < settings.rounds:
            count = worker_count(workers, len(population), settings.device)
            with Engine(work, count) as engine:
                while loop.done < settings.rounds:
                    loop.next_round(engine, list(sets), local_sets)
    # There are updates left where a kill came right after the last round.
    shutil.rmtree(_partial(Path(folder)), ignore_errors=True)
    return Trajectory(Path(folder))


class _Loop:
    """The state of a run between two rounds, and its files."""

    def __init__(
        self,
        method: Method,
        population: Population,
        settings: Rounds,
        folder: Path,
        initial: State,
        start: Trajectory | None,
    ) -> None:
        self.method, self.population, self.settings, self.folder = method, population, settings, folder
        self.server = Server(initial)
        self.memories: dict[int, State] = {}
        self.done = 0
        self.kept: dict[str, str] = {}  # stored global models and their checksums
        self.logs = {name: GrowingTable(folder / name) for name in ("rounds.csv", "ledger.csv")}
        self.identity = _identity(method, settings, initial)
        if self._restore(folder, self.identity):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if start is None:
            self.logs["rounds.csv"].append([_METRICS])
            self.logs["ledger.csv"].append([_LEDGER])
        else:
            self._take_over(start.folder, initial)
        self._checkpoint()

    def next_round(self, engine: Engine, sets: list[str], local_sets: Mapping[int, str]) -> None:
        settings, round = self.settings, self.done + 1
        present = self.population.present(round)
        chosen = sample_clients(present, settings.participation, settings.seed, round)
        sizes = {client: len(self.population.data(client, round)) for client in chosen}
        broadcast = Broadcast(round, self.server.weights, self.method.broadcast_statistics(self.server))
        rows: list[tuple[Any, ...]] = []
        sent: list[dict[str, int]] = []
        memories: dict[int, State] = {}

        def noted(updates: Iterator[Update]) -> Iterator[Update]:
            for update in updates:
                rows.extend(
                    (round, update.client, "train", name, float(value))
                    for name, value in update.metrics.items()
                )
                rows.append((round, update.client, "train", "samples", float(update.num_samples)))
                sent.append(update.bytes())
                memories[update.client] = update.memory
                yield update

        partial = PartialRound(_partial(self.folder), round)
        stored = partial.found
        missing = [client for client in chosen if client not in stored]
        try:
            computed = engine.updates(broadcast, missing, self.memories, sizes)
            self.server = self.method.aggregate(self.server, noted(partial.merged(chosen, computed)))
        except EmptyRound as error:
            error.add_note(f"in round {round}")
            raise
        self.memories = {client: kept for client, kept in (self.memories | memories).items() if kept}
        rows += [(round, -1, "train", name, float(value)) for name, value in self.server.metrics.items()]
        self.done = round
        if round % settings.evaluate_every == 0 or round == settings.rounds:
            for name in sets:
                scores = engine.evaluate(self.server.weights, name)
                rows += [(round, -1, name, metric, value) for metric, value in scores.items()]
            for client, name in local_sets.items():
                weights = self.method.personal_weights(self.server.weights, self.memories.get(client, {}))
                scores = engine.evaluate(weights, name)
                rows += [(round, client, name, metric, value) for metric, value in scores.items()]
        self.logs["rounds.csv"].append(rows)
        self.logs["ledger.csv"].append(_ledger_rows(round, broadcast.bytes(), sent))
        self._checkpoint()
        partial.clear()
        log.info("round %d of %d: %d clients", round, settings.rounds, len(sent))

    def _checkpoint(self) -> None:
        """Store the state after ``self.done`` rounds; it counts from the moment that checkpoint.json names it."""
        memory = _memory_file(self.folder, self.done)
        kept = {f"server/{name}": tensor for name, tensor in self.server.memory.items()}
        for client, state in self.memories.items():
            kept |= {f"{client}/{name}": tensor for name, tensor in state.items()}
        weights = _global(self.folder, self.done)
        digest = files.write_tensors(weights, self.server.weights)
        if self.settings.keep == "last":
            self.kept.clear()
        self.kept[weights.name] = digest
        record = {
            "identity": self.identity,
            "round": self.done,
            "global": self.kept,
            "memory": files.write_tensors(memory, kept) if kept else None,
            "logs": {name: written.mark() for name, written in self.logs.items()},
        }
        files.write_json(self.folder / "checkpoint" / "checkpoint.json", record)
        if self.done:
            _memory_file(self.folder, self.done - 1).unlink(missing_ok=True)
            if self.settings.keep == "last":
                _global(self.folder, self.done - 1).unlink(missing_ok=True)

    def _take_over(self, start: Path, initial: State) -> None:
        """Go on from the end of another run, whose files are copied: nothing later can damage both.

        Raises:
            InputError: it is not one that this run can start from.
        """
        for name in self.logs:
            shutil.copyfile(start / name, self.folder / name)
        shutil.copytree(start / "global", self.folder / "global")
        rounds = max(Trajectory(start).rounds)
        shorter = replace(self.settings, rounds=rounds)
        if rounds >= self.settings.rounds or rounds % self.settings.evaluate_every:
            raise InputError(
                f"start has {rounds} rounds; allowed: fewer than {self.settings.rounds}, and a multiple of "
                f"evaluate_every = {self.settings.evaluate_every}, since the last round is evaluated"
            )
        if not self._restore(start, _identity(self.method, shorter, initial)):
            raise InputError(f"{start} cannot be started from: its checkpoint is absent or damaged")

    def _restore(self, source: Path, identity: str) -> bool:
        """Restore the last checkpoint of ``source``; return False if there is none that is whole.

        The stored models and tables that it names are those of this run's own folder.

        Raises:
            InputError: if the folder holds another run.
        """
        path = source / "checkpoint" / "checkpoint.json"
        if not path.exists():
            return False
        try:
            record = json.loads(path.read_text())
            found, done, kept = record["identity"], record["round"], record["global"]
            memory = _memory_file(source, done) if record["memory"] else None
            checksums = {self.folder / "global" / name: digest for name, digest in kept.items()}
            if memory:
                checksums[memory] = record["memory"]
            damaged = [file.name for file, digest in checksums.items() if files.sha256(file) != digest]
            damaged += [name for name, mark in record["logs"].items() if not self.logs[name].matches(mark)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the checkpoint cannot be read (%s); the run starts anew", error)
            return False
        if damaged:
            log.warning("damaged: %s; the run starts anew", ", ".join(damaged))
            return False
        if found != identity:
            raise InputError(
                f"{source} holds another run: other settings, method or initial model; allowed: the same, "
                "or an empty folder"
            )
        weights = files.read_tensors(_global(self.folder, done))
        self.server = Server({name: weights[name] for name in self.server.weights})  # sums keep their order
        for name, tensor in files.read_tensors(memory).items() if memory else ():
            owner, _, rest = name.partition("/")
            target = self.server.memory if owner == "server" else self.memories.setdefault(int(owner), {})
            target[rest] = tensor
        for name, mark in record["logs"].items():  # without the rows of a round that was not completed
            self.logs[name].cut(mark)
        self.done, self.kept = done, kept
        log.info("going on after round %d", done)
        return True


def _identity(method: Method, settings: Rounds, initial: State) -> str:
    """Return a checksum of what must be the same for a run to go on."""
    values = hashlib.sha256()
    for name, tensor in initial.items():
        values.update(name.encode() + tensor.numpy().tobytes())
    return hashlib.sha256(f"{method!r} {settings!r} {values.hexdigest()}".encode()).hexdigest()


def _global(folder: Path, round: int) -> Path:
    return folder / "global" / f"round-{round:04d}.safetensors"


def _partial(folder: Path) -> Path:
    return folder / "checkpoint" / "round"


def _memory_file(folder: Path, round: int) -> Path:
    return folder / "checkpoint" / f"{round:04d}.safetensors"


def _ledger_rows(
    round: int, down: Mapping[str, int], up: Sequence[Mapping[str, int]]
) -> list[tuple[Any, ...]]:
    rows = [(round, "down", kind, len(up) if size else 0, size * len(up)) for kind, size in down.items()]
    for kind in up[0]:
        sizes = [sizes[kind] for sizes in up if sizes[kind]]
        rows.append((round, "up", kind, len(sizes), sum(sizes)))
    return rows
