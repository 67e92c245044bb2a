"""Arrays and folders that take long to make and are made once: a locked, atomic, checked cache."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from fedlib import files, paths
from fedlib.workers import wanted

log = logging.getLogger(__name__)

_CHECKSUM = "sha256"
MANIFEST = "manifest.json"  # of a kept folder: the SHA-256 of every other file in it


def path_of(name: str, *decides: object, suffix: str = ".npz") -> Path:
    """Return where arrays (or a folder: no suffix) are kept that ``name`` and all of ``decides`` decide."""
    key = hashlib.sha256("\x1f".join(map(repr, decides)).encode()).hexdigest()[:16]
    return paths.state_root() / "prepared" / f"{name}-{key}{suffix}"


def workers() -> int:
    """Return how many processes or threads may prepare data: ``FEDLIB_WORKERS``, else one for each usable core.

    Raises:
        InputError: ``FEDLIB_WORKERS`` is not a positive integer.
    """
    return wanted()


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
    with _locked(path):
        if (kept := _read(path)) is not None and current(kept):
            return kept
        arrays = {name: np.ascontiguousarray(array) for name, array in make().items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays, **{_CHECKSUM: np.array(_checksum(arrays))})
        files.write_atomic(path, buffer.getvalue())
        return arrays


def folder_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder ``path``; make it if it is absent or one of its files is absent or damaged.

    A second process that wants the same folder waits for the first one. The folder appears when it is whole.

    Args:
        path: see :func:`path_of`.
        make: fills the empty folder that it is given.
    """
    if _whole(path):
        return path
    with _locked(path):
        if _whole(path):
            return path
        shutil.rmtree(path, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            make(new)
            sums = {name: files.sha256(new / name) for name in _contents(new)}
            files.write_json(new / MANIFEST, sums)
            new.chmod(path.parent.stat().st_mode)  # mkdtemp folders are private
            os.replace(new, path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return path


def folder_checksum(path: Path) -> str:
    """Return the SHA-256 over all files of a kept folder."""
    return files.sha256(path / MANIFEST)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("%s: another process makes it; waiting", path.name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _contents(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    )


def _whole(folder: Path) -> bool:
    """Say whether a kept folder is there and each of its files is in order."""
    if not folder.is_dir():
        return False
    try:
        sums = json.loads((folder / MANIFEST).read_text("utf-8"))
        wrong = [name for name, expected in sums.items() if files.sha256(folder / name) != expected]
        reason = f"the checksum of {wrong[0]} differs" if wrong else ""
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error)
    if reason:
        log.warning("%s is damaged (%s) and is made again", folder, reason)
    return not reason


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
