"""Where client updates and predictions are computed: in this process or in worker processes.

Both engines run the same pure functions with one torch thread, so that they give the same bits. Workers are
forked: they inherit data and model without a copy and start in milliseconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from fedlib.errors import InputError
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Method
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.population import Population
from fedlib.federation.tasks import Data, Task

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
    wish: Any = requested if requested is not None else os.environ.get("FEDLIB_WORKERS") or None
    if wish is None:
        wish = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(wish, bool) or not str(wish).isdigit() or int(wish) < 1:
        raise InputError(f"workers is {wish!r}; allowed: an integer >= 1")
    count = min(int(wish), max(1, most))
    if count > 1 and (device != "cpu" or torch.cuda.is_initialized() or not sys.platform.startswith("linux")):
        log.info("one process instead of %d: workers are forked, which needs Linux and no GPU in use", count)
        return 1
    return count


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one torch thread: sums then have one order, whatever the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        self, broadcast: Broadcast, memories: dict[int, State], sizes: dict[int, int]
    ) -> list[Update]:
        """Return the updates of the clients in ``memories``, by client id.

        Args:
            broadcast: the server's message.
            memories: what each client of the round kept.
            sizes: number of samples of each of them, to share the work evenly.
        """
        clients = sorted(memories)
        if self._pool is None:
            return [self.work.update(client, broadcast, memories[client]) for client in clients]
        jobs = []
        for share in _even_shares(clients, sizes, self.workers):
            message = replace(
                broadcast, weights=_arrays(broadcast.weights), statistics=_arrays(broadcast.statistics)
            )
            kept = {client: _arrays(memories[client]) for client in share}
            jobs.append(self._pool.submit(_update_many, message, kept))
        updates = [_with_tensors(update) for job in jobs for update in job.result()]
        return sorted(updates, key=lambda update: update.client)

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
    torch.set_num_threads(1)


def _update_many(broadcast: Broadcast, memories: dict[int, State]) -> list[Update]:
    message = replace(
        broadcast, weights=_tensors(broadcast.weights), statistics=_tensors(broadcast.statistics)
    )
    updates = []
    for client, memory in memories.items():
        update = _work.update(client, message, _tensors(memory))
        updates.append(_convert(update, _arrays))
    return updates


def _predict(weights: State, name: str, start: int, stop: int) -> list[Any]:
    return _work.predict(_tensors(weights), name, start, stop)


# Tensors travel between processes as numpy arrays: torch would hand each one over in a shared-memory file of
# its own, which costs more than a copy for the small tensors of a model.
def _arrays(state: Any) -> Any:
    return {name: tensor.numpy() for name, tensor in state.items()}


def _tensors(state: Any) -> State:
    return {name: torch.from_numpy(np.asarray(value)) for name, value in state.items()}


def _convert(update: Update, change: Callable[[Any], Any]) -> Update:
    return replace(
        update,
        weights=change(update.weights),
        masks=change(update.masks),
        statistics=change(update.statistics),
        memory=change(update.memory),
    )


def _with_tensors(update: Update) -> Update:
    return _convert(update, _tensors)


def _even_shares(clients: Sequence[int], sizes: dict[int, int], shares: int) -> list[list[int]]:
    """Split clients into at most ``shares`` groups of similar total size: largest first, to the emptiest."""
    groups: list[list[int]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for client in sorted(clients, key=lambda c: (-sizes[c], c)):
        place = loads.index(min(loads))
        groups[place].append(client)
        loads[place] += sizes[client] + 1
    return [sorted(group) for group in groups if group]
