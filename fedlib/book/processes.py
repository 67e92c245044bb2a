"""End every process of one notebook run.

A kernel has a session of its own and may start workers, and when a parent dies its children are handed to
another process. So neither process groups nor the tree of parents find them all. Instead each run marks the
environment of its first process, and all its descendants inherit the mark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil

MARK = "FEDLIB_NOTEBOOK_RUN"
_ATTEMPTS = 50
_PAUSE_S = 0.02


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the living processes that carry ``mark``, without the calling one."""
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == mark
            ):
                yield process
        except psutil.Error:
            continue  # another user's process, or gone meanwhile


def end(mark: str) -> None:
    """Kill all processes that carry ``mark``, also those that start while this runs."""
    for _ in range(_ATTEMPTS):
        found = list(marked(mark))
        if not found:
            return
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(_PAUSE_S)
