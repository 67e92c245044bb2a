"""Where client updates and predictions are computed: in this process or in worker processes.

Both engines run the same pure functions with one torch thread, so that they give the same bits. Workers are
forked: they inherit data and model without a copy and start in milliseconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Method
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.population import Population
from fedlib.federation.tasks import Data, Task
from fedlib.workers import wanted

log = logging.getLogger(__name__)

T = TypeVar("T")
EVALUATION_BATCH = (
    128  # one batch of 1,000 images is 1.5 to 2.2 times slower: its activations leave the cache
)


def worker_count(requested: int | None, most: int, device: str = "cpu") -> int:
    """Return the number of processes to use.

    Args:
        requested: the caller's wish; None means ``FEDLIB_WORKERS``, else the number of usable cores.
        most: number of clients; more workers would be idle.
        device: on a GPU there is always one.

    Raises:
        InputError: if the wish is not a positive integer.
    """
    count = min(wanted(requested), max(1, most))
    if count > 1 and (device != "cpu" or torch.cuda.is_initialized() or not sys.platform.startswith("linux")):
        log.info("one process instead of %d: workers are forked, which needs Linux and no GPU in use", count)
        return 1
    return count


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one thread of torch, NumPy and SciPy: sums then have one order on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


class WorkerDied(RuntimeError):
    """A worker process ended without an answer."""


class RemoteError(RuntimeError):
    """An error of a worker process that cannot be passed on as it is; its text and traceback."""


class Work:
    """The pure functions of a run and the scratch model that they use."""

    def __init__(
        self,
        task: Task,
        method: Method,
        population: Population,
        evaluation: dict[str, Data],
        seed: int,
        device: str,
    ) -> None:
        self.task, self.method, self.population, self.evaluation = task, method, population, evaluation
        self.seed, self.device = seed, device
        self._model: FlatModel | None = None

    @property
    def model(self) -> FlatModel:
        """The scratch model, built on first use in each process."""
        if self._model is None:
            self._model = FlatModel(self.task.build_model(self.seed), self.device)
        return self._model

    def update(self, client: int, broadcast: Broadcast, memory: State) -> Update:
        """Return the update of one client; an error carries the client and the round."""
        try:
            data = self.population.data(client, broadcast.round)
            return self.method.client_update(
                self.task, self.model, client, data, broadcast, memory, self.seed
            )
        except Exception as error:
            error.add_note(f"in client {client}, round {broadcast.round}")
            raise

    def predict(self, weights: State, name: str, start: int, stop: int) -> list[Any]:
        """Return the predictions of ``weights`` for samples ``start`` to ``stop`` of an evaluation set."""
        data = self.evaluation[name]
        self.model.load(weights)
        self.model.module.eval()
        with torch.inference_mode():
            return [
                self.task.predict(
                    self.model.module, data.batch(torch.arange(first, min(first + EVALUATION_BATCH, stop)))
                )
                for first in range(start, stop, EVALUATION_BATCH)
            ]


class Engine:
    """Computes updates and predictions of a run, in ``workers`` processes."""

    def __init__(self, work: Work, workers: int) -> None:
        self.work, self.workers = work, workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Engine:
        if self.workers > 1:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(
                self.workers, context, initializer=_start_worker, initargs=(self.work,)
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def updates(
        self,
        broadcast: Broadcast,
        clients: Sequence[int],
        memories: Mapping[int, State],
        sizes: Mapping[int, int],
    ) -> Iterator[Update]:
        """Yield the updates of ``clients`` by ascending client id, each as soon as its turn has come.

        Only a few updates exist at a time, whatever the number of clients.

        Args:
            broadcast: the server's message.
            clients: ids, ascending.
            memories: what clients kept from their last round, where they kept something.
            sizes: number of samples of each client, to share the work evenly.

        Raises:
            WorkerDied: a worker process was killed, naming the round and the clients.
            Exception: an error in a client surfaces as it is, with client and round in its notes.
        """
        if self._pool is None:
            for client in clients:
                yield self.work.update(client, broadcast, memories.get(client, {}))
            return
        message = _convert(broadcast, _arrays)
        shares = iter(_shares(clients, sizes, 4 * self.workers, _most_clients(broadcast.weights)))
        jobs: deque[tuple[list[int], Future[list[Update]]]] = deque()

        def submit(pool: ProcessPoolExecutor) -> None:
            if share := next(shares, None):
                kept = {client: _arrays(memories.get(client, {})) for client in share}
                jobs.append((share, pool.submit(_update_many, message, kept)))

        for _ in range(2 * self.workers):
            submit(self._pool)
        while jobs:
            share, job = jobs.popleft()
            try:
                found = job.result()
            except BrokenProcessPool:
                names = ", ".join(map(str, share))
                raise WorkerDied(
                    f"a worker process died in round {broadcast.round} while clients {names} or later ones were "
                    "trained; was it killed, or is the memory used up? fewer workers need less"
                ) from None
            submit(self._pool)
            for update in found:
                yield _convert(update, _tensors)

    def evaluate(self, weights: State, name: str) -> dict[str, float]:
        """Return the task's metrics of ``weights`` on an evaluation set."""
        data = self.work.evaluation[name]
        if self._pool is None or len(data) <= EVALUATION_BATCH:
            predictions = self.work.predict(weights, name, 0, len(data))
        else:
            blocks = -(-len(data) // EVALUATION_BATCH)
            step = -(-blocks // self.workers) * EVALUATION_BATCH
            jobs = [
                self._pool.submit(_predict, _arrays(weights), name, start, min(start + step, len(data)))
                for start in range(0, len(data), step)
            ]
            predictions = [part for job in jobs for part in job.result()]
        return self.work.task.score(data, predictions)


_work: Work  # the run of this worker process; set once, when it starts


def _start_worker(work: Work) -> None:
    global _work
    _work = work
    stay_with_one_thread()
    end_with_parent()


def stay_with_one_thread() -> None:
    """Do in a forked process what :func:`one_thread` does in a block; OpenMP's threads do not survive a fork."""
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")


def end_with_parent() -> None:
    """Let this process end soon after its parent has ended, even if the parent was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _update_many(broadcast: Broadcast, memories: dict[int, State]) -> list[Update]:
    message = _convert(broadcast, _tensors)
    try:
        return [
            _convert(_work.update(client, message, _tensors(memory)), _arrays)
            for client, memory in memories.items()
        ]
    except Exception as error:
        raise _portable(error) from None


def _predict(weights: State, name: str, start: int, stop: int) -> list[Any]:
    try:
        return _work.predict(_tensors(weights), name, start, stop)
    except Exception as error:
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    """Return an error that can cross to another process: itself, or its text where it cannot be pickled."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 (our own bytes)
            return error
    except Exception as reason:
        log.debug("%r cannot be pickled: %s", error, reason)
    text = RemoteError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        text.add_note(note)
    text.add_note("".join(traceback.format_exception(error)))
    return text


Message = TypeVar("Message", Broadcast, Update)
_STATES = {"weights", "masks", "statistics", "memory"}
_SHARE_BYTES = 16_000_000  # of updates that travel together


def _convert(message: Message, change: Callable[[Any], Any]) -> Message:
    """Return a message with ``change`` applied to each of its states."""
    names = [field.name for field in fields(message) if field.name in _STATES]
    return replace(message, **{name: change(getattr(message, name)) for name in names})


# Tensors travel between processes as numpy arrays: torch would hand each one over in a shared-memory file of
# its own, which costs more than a copy for the small tensors of a model.
def _arrays(state: Any) -> Any:
    return {name: tensor.numpy() for name, tensor in state.items()}


def _tensors(state: Any) -> State:
    return {name: torch.from_numpy(np.asarray(value)) for name, value in state.items()}


def _most_clients(weights: State) -> int:
    size = sum(tensor.nbytes for tensor in weights.values())
    return max(1, _SHARE_BYTES // max(1, size))


def _shares(clients: Sequence[int], sizes: Mapping[int, int], parts: int, most: int) -> list[list[int]]:
    """Cut ``clients`` into runs of neighbours: at most ``most``, and at most a part's sum of sizes if possible."""
    budget = sum(sizes[client] for client in clients) / parts
    shares: list[list[int]] = []
    load = 0
    for client in clients:
        if not shares or load + sizes[client] > budget or len(shares[-1]) >= most:
            shares.append([])
            load = 0
        shares[-1].append(client)
        load += sizes[client]
    return shares
