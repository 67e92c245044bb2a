"""Arrays that take long to make and are made once: a locked, atomic, checked cache of npz files."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from fedlib import files, paths
from fedlib.errors import InputError

log = logging.getLogger(__name__)

_CHECKSUM = "sha256"


def path_of(name: str, *decides: object) -> Path:
    """Return where arrays are kept that ``name`` and everything in ``decides`` decide."""
    key = hashlib.sha256("\x1f".join(map(repr, decides)).encode()).hexdigest()[:16]
    return paths.state_root() / "prepared" / f"{name}-{key}.npz"


def workers() -> int:
    """Return how many processes or threads may prepare data: ``FEDLIB_WORKERS``, else one for each usable core.

    Raises:
        InputError: ``FEDLIB_WORKERS`` is not a positive integer.
    """
    wish = os.environ.get("FEDLIB_WORKERS")
    if not wish:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wish.isdigit() or int(wish) < 1:
        raise InputError(f"FEDLIB_WORKERS is {wish!r}; allowed: an integer >= 1")
    return int(wish)


def once(
    path: Path,
    make: Callable[[], Mapping[str, np.ndarray]],
    current: Callable[[dict[str, np.ndarray]], bool] = lambda arrays: True,
) -> dict[str, np.ndarray]:
    """Return the arrays kept at ``path``; make and keep them if they are absent or damaged.

    A second process that wants the same arrays waits for the first one. The file appears when it is whole.

    Args:
        path: file name ending in .npz, see :func:`path_of`.
        make: returns named arrays of numbers or text, never of Python objects.
        current: says whether kept arrays still hold; if not, they are made anew.
    """
    if (kept := _read(path)) is not None and current(kept):
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("%s: another process makes it; waiting", path.name)
        lock.acquire()
    try:
        if (kept := _read(path)) is not None and current(kept):
            return kept
        arrays = {name: np.ascontiguousarray(array) for name, array in make().items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays, **{_CHECKSUM: np.array(_checksum(arrays))})
        files.write_atomic(path, buffer.getvalue())
        return arrays
    finally:
        lock.release()


def _read(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays if the file is there and in order."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if str(arrays.pop(_CHECKSUM)) == _checksum(arrays):
            return arrays
        reason = "its checksum differs"
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error)
    log.warning("%s is damaged (%s) and is made again", path, reason)
    return None


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
