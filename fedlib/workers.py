"""How many processes work side by side."""

from __future__ import annotations

import os
import re

from fedlib.errors import InputError


def wanted(requested: int | None = None) -> int:
    """Return the number of processes that are wanted.

    Args:
        requested: the caller's wish; None means ``FEDLIB_WORKERS``, else the number of usable cores.

    Raises:
        InputError: the wish is not a positive integer.
    """
    name, wish = "workers", requested if requested is not None else os.environ.get("FEDLIB_WORKERS") or None
    if wish is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if requested is None:
        name = "FEDLIB_WORKERS"
    if isinstance(wish, bool) or not re.fullmatch("[0-9]+", str(wish)) or int(wish) < 1:
        raise InputError(f"{name} is {wish!r}; allowed: an integer >= 1")
    return int(wish)
