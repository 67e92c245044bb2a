"""Independent runs side by side."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from fedlib.federation.engine import end_with_parent, one_thread, stay_with_one_thread, worker_count

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Job, int | None], Result], jobs: Sequence[Job], device: str = "cpu"
) -> list[Result]:
    """Return ``function(job, workers)`` of all jobs, in order.

    With as many jobs as cores, each job has one process and passes ``workers=1`` on; with fewer the jobs run one
    after the other and each takes the default number. Results do not depend on it.

    Args:
        function: stores its result itself (see ``fedlib.runs``); what it returns crosses a process border.
        jobs: picklable arguments.
        device: jobs on a GPU run one after the other.
    """
    workers = worker_count(None, len(jobs), device)
    if workers == 1 or len(jobs) < workers:
        with one_thread():
            return [function(job, None) for job in jobs]
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, initializer=_set, initargs=(function,)) as pool:
        return list(pool.map(_call, jobs))


_function: Callable[..., Any]  # of this worker process: inherited by the fork, so it need not be picklable


def _set(function: Callable[..., Any]) -> None:
    global _function
    _function = function
    stay_with_one_thread()
    end_with_parent()


def _call(job: Any) -> Any:
    return _function(job, 1)
