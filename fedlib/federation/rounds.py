"""The round loop: broadcast, client updates, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from fedlib import files, seeds
from fedlib.errors import InputError
from fedlib.federation.engine import Engine, Work, one_thread, worker_count
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Method, Server
from fedlib.federation.model_state import State, check_same_names, model_state
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
    workers: int | None = None,
) -> Trajectory:
    """Run a federation, or go on with an interrupted one, and return its trajectory.

    After each round everything that the next one needs is on disk, so a run that is killed at any moment and
    started again with the same arguments ends with the same bits.

    Args:
        task: what is learned.
        method: how; see ``fedlib.methods``.
        population: who takes part.
        settings: rounds, seed, participation.
        folder: the run's files, and its checkpoint while it is unfinished.
        evaluation: test sets by name, for the global model.
        client_evaluation: for each client id the name of the set on which its personal model is evaluated.
        initial: initial global model; by default the task's model from the run's seed.
        workers: processes; None means ``FEDLIB_WORKERS``, else one for each core.

    Raises:
        InputError: bad settings, or ``initial`` of another model.
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
    work = Work(task, method, population, sets, settings.seed, settings.device)
    with one_thread():
        first = model_state(task.build_model(settings.seed))
        if initial is not None:
            check_same_names(initial, first)
            first = dict(initial)
        loop = _Loop(method, population, settings, Path(folder), first)
        if loop.done < settings.rounds:
            count = worker_count(workers, len(population), settings.device)
            with Engine(work, count) as engine:
                while loop.done < settings.rounds:
                    loop.next_round(engine, list(sets), local_sets)
    return Trajectory(Path(folder))


class _Loop:
    """The state of a run between two rounds, and its files."""

    def __init__(
        self, method: Method, population: Population, settings: Rounds, folder: Path, initial: State
    ) -> None:
        self.method, self.population, self.settings, self.folder = method, population, settings, folder
        self.done = 0
        self.server = Server(initial)
        self.memories: dict[int, State] = {}
        if not self._resume():
            folder.mkdir(parents=True, exist_ok=True)
            files.write_atomic(folder / "rounds.csv", ",".join(_METRICS) + "\n")
            files.write_atomic(folder / "ledger.csv", ",".join(_LEDGER) + "\n")
            self._checkpoint()

    def next_round(self, engine: Engine, sets: list[str], local_sets: Mapping[int, str]) -> None:
        settings, round = self.settings, self.done + 1
        present = self.population.present(round)
        chosen = sample_clients(present, settings.participation, settings.seed, round)
        broadcast = Broadcast(round, self.server.weights, self.method.broadcast_statistics(self.server))
        updates = engine.updates(
            broadcast,
            {client: self.memories.get(client, {}) for client in chosen},
            {client: len(self.population.data(client, round)) for client in chosen},
        )
        try:
            self.server = self.method.aggregate(self.server, updates)
        except Exception as error:
            error.add_note(f"in round {round}")
            raise
        self.memories |= {update.client: update.memory for update in updates if update.memory}
        self.done = round

        rows: list[tuple[Any, ...]] = []
        for update in updates:
            rows += [(round, update.client, "train", name, value) for name, value in update.metrics.items()]
            rows.append((round, update.client, "train", "samples", float(update.num_samples)))
        if round % settings.evaluate_every == 0 or round == settings.rounds:
            for name in sets:
                scores = engine.evaluate(self.server.weights, name)
                rows += [(round, -1, name, metric, value) for metric, value in scores.items()]
            for client, name in local_sets.items():
                weights = self.method.personal_weights(self.server.weights, self.memories.get(client, {}))
                rows += [
                    (round, client, name, m, value) for m, value in engine.evaluate(weights, name).items()
                ]
        _append(self.folder / "rounds.csv", rows)
        _append(self.folder / "ledger.csv", _ledger_rows(round, broadcast, updates))
        self._checkpoint()
        log.info("round %d of %d: %d clients", round, settings.rounds, len(updates))

    def _checkpoint(self) -> None:
        """Store the state after ``self.done`` rounds; it counts from the moment that checkpoint.json names it."""
        weights, memory = (
            _global(self.folder, self.done),
            self.folder / "checkpoint" / f"{self.done:04d}.safetensors",
        )
        kept = {f"server/{name}": tensor for name, tensor in self.server.memory.items()}
        for client, state in self.memories.items():
            kept |= {f"{client}/{name}": tensor for name, tensor in state.items()}
        record = {
            "round": self.done,
            "weights": files.write_tensors(weights, self.server.weights),
            "memory": files.write_tensors(memory, kept) if kept else None,
            "rounds.csv": (self.folder / "rounds.csv").stat().st_size,
            "ledger.csv": (self.folder / "ledger.csv").stat().st_size,
        }
        files.write_json(self.folder / "checkpoint" / "checkpoint.json", record)
        if self.done:
            (self.folder / "checkpoint" / f"{self.done - 1:04d}.safetensors").unlink(missing_ok=True)
            if self.settings.keep == "last":
                _global(self.folder, self.done - 1).unlink(missing_ok=True)

    def _resume(self) -> bool:
        """Restore the last checkpoint; return False if there is none that is whole."""
        path = self.folder / "checkpoint" / "checkpoint.json"
        if not path.exists():
            return False
        record = json.loads(path.read_text())
        done = record["round"]
        weights, memory = _global(self.folder, done), path.with_name(f"{done:04d}.safetensors")
        for file, digest in ((weights, record["weights"]), (memory, record["memory"])):
            if digest is not None and (not file.exists() or files.sha256(file) != digest):
                log.warning("checkpoint of round %d is damaged (%s); the run starts anew", done, file.name)
                return False
        stored = files.read_tensors(weights)
        check_same_names(stored, self.server.weights)
        kept = files.read_tensors(memory) if record["memory"] else {}
        self.server = Server(stored)
        for name, tensor in kept.items():
            owner, _, rest = name.partition("/")
            target = self.server.memory if owner == "server" else self.memories.setdefault(int(owner), {})
            target[rest] = tensor
        for name in ("rounds.csv", "ledger.csv"):  # rows of a round that was not completed
            with (self.folder / name).open("r+b") as log_file:
                log_file.truncate(record[name])
        self.done = done
        log.info("going on after round %d", done)
        return True


def _global(folder: Path, round: int) -> Path:
    return folder / "global" / f"round-{round:04d}.safetensors"


def _append(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _ledger_rows(round: int, broadcast: Broadcast, updates: list[Update]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for kind, size in broadcast.bytes().items():
        rows.append((round, "down", kind, len(updates) if size else 0, size * len(updates)))
    sizes = [update.bytes() for update in updates]
    for kind in sizes[0] if sizes else ():
        sent = [size[kind] for size in sizes if size[kind]]
        rows.append((round, "up", kind, len(sent), sum(sent)))
    return rows
