"""The content-addressed store of runs.

A run is a folder named by a hash of everything that decides its result: the configuration, the checksums of
its data, the source files it uses and the versions of torch and numpy. It is computed in a folder aside, under
a lock, and renamed into place when it is whole. Opening a run checks every file against its checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from filelock import FileLock, Timeout

import fedlib
from fedlib import files, paths
from fedlib.errors import InputError
from fedlib.runs import code

if TYPE_CHECKING:  # looking at stored runs needs neither
    from pandas import DataFrame
    from torch import Tensor

log = logging.getLogger(__name__)

_KEY_LENGTH = 20  # hex digits: 80 bits
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what a damaged JSON file can raise


def versions() -> dict[str, str]:
    """Return the versions of the libraries whose arithmetic decides a result."""
    return {name: metadata.version(name) for name in ("torch", "numpy")}


def environment() -> dict[str, str]:
    """Return what a reader wants to know about the machine of a run; no names, no paths."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return versions() | {
        "python": platform.python_version(),
        "fedlib": fedlib.__version__,
        "system": platform.system(),
        "cpu": cpu,
        "cores": str(os.cpu_count()),
    }


def machine() -> str:
    """Return the computer in one line: system, processor, cores, memory."""
    found = environment()
    memory = psutil.virtual_memory().total / 2**30
    return f"{found['system']}, {found['cpu']}, {found['cores']} cores, {memory:.0f} GiB"


@dataclass(frozen=True)
class RunSpec:
    """What decides a run's result.

    Attributes:
        name: dotted name of the experiment, for example ``mpt.preliminary``; it names the folder.
        config: JSON-serialisable settings, the seed included.
        data: checksum of each data set by name.
        modules: dotted fedlib modules whose code (with all that they import) the run depends on.
    """

    name: str
    config: Mapping[str, Any]
    data: Mapping[str, str]
    modules: tuple[str, ...]

    @cached_property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The four parts of the key as plain JSON values."""
        parts = {
            "config": dict(self.config),
            "data": dict(self.data),
            "code": code.run_hashes(self.modules),
            "versions": versions(),
        }
        return json.loads(json.dumps(parts, sort_keys=True, allow_nan=False))

    @cached_property
    def key(self) -> str:
        """Hex key of the run."""
        text = json.dumps({"name": self.name, **self.parts}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder.

    Attributes:
        name: dotted name of the experiment.
        key: hex key.
        path: the run's folder.
        config: the settings it was computed with.
        environment: versions and machine of the computation.
        seconds: how long the process that finished the run computed; work before a kill is not in it.
        reused: True when it was found, False when this process computed it.
    """

    name: str
    key: str
    path: Path
    config: dict[str, Any] = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    seconds: float = 0.0
    reused: bool = True

    @property
    def size(self) -> int:
        """Bytes that its files take."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    @cached_property
    def metrics(self) -> DataFrame:
        """The run's tidy table: condition columns, ``metric`` and ``value``, one measured number a row."""
        return files.read_table(self.path / "metrics.csv")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The run's named tensors (empty if it stored none)."""
        path = self.path / "tensors.safetensors"
        return files.read_tensors(path) if path.exists() else {}


@dataclass
class Workspace:
    """The folder in which a run is being computed; what lies in it at the end becomes the run.

    After a kill the next attempt finds what was there, so an experiment can go on from its own checkpoints.
    """

    folder: Path

    def finish(self, metrics: DataFrame, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store the results."""
        files.write_atomic(self.folder / "metrics.csv", metrics.to_csv(index=False))
        if tensors:
            files.write_tensors(self.folder / "tensors.safetensors", tensors)


class DamagedRun(Exception):
    """A stored run whose files do not agree with their checksums."""


class Store:
    """Runs below one folder (``paths.runs_root()`` unless another is given)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(root) if root else paths.runs_root()

    def folder(self, spec: RunSpec) -> Path:
        """Return the folder that the finished run has or will have."""
        return self.root / spec.name / spec.key

    def get(self, spec: RunSpec) -> Run | None:
        """Return the stored run, or None if there is none or it is damaged."""
        try:
            return self._open(self.folder(spec))
        except FileNotFoundError:
            return None
        except DamagedRun as damage:
            log.warning("%s %s: %s", spec.name, spec.key, damage)
            return None

    def compute(self, spec: RunSpec, function: Callable[[Workspace], None]) -> Run:
        """Return the run of ``spec``, computing it with ``function`` unless it is stored.

        ``function`` receives a ``Workspace``, goes on from what an earlier attempt left there, and ends by
        calling ``Workspace.finish``. It runs with one thread, so that a result does not depend on the machine's
        cores or on who asks for it first. When two processes ask for one run, the second waits for the first.
        """
        if run := self.get(spec):
            return run
        with self._lock(spec):
            if run := self.get(spec):
                return run
            log.info("%s %s: computing (%s)", spec.name, spec.key, self.why(spec))
            final = self.folder(spec)
            _remove(final)  # only a damaged run can be here
            workspace = Workspace(_partial(final))
            workspace.folder.mkdir(parents=True, exist_ok=True)
            for name in ("metrics.csv", "tensors.safetensors"):  # of an attempt that was stopped while ending
                (workspace.folder / name).unlink(missing_ok=True)
            from fedlib.federation.engine import one_thread  # here, since it loads torch

            start = time.perf_counter()
            with one_thread():
                function(workspace)
            if not (workspace.folder / "metrics.csv").exists():
                raise RuntimeError(f"{spec.name}: the experiment ended without Workspace.finish")
            seconds = time.perf_counter() - start
            files.write_json(workspace.folder / "config.json", spec.parts["config"])
            files.write_json(workspace.folder / "key.json", {"name": spec.name, **spec.parts})
            files.write_json(
                workspace.folder / "environment.json", environment() | {"seconds": round(seconds, 3)}
            )
            for path in workspace.folder.rglob(".*"):  # left by writes that were killed
                path.unlink()
            files.write_json(workspace.folder / "checksums.json", _checksums(workspace.folder))
            os.replace(workspace.folder, final)
            log.info("%s %s: done in %.1f s", spec.name, spec.key, seconds)
            run = self._open(final)
            return Run(run.name, run.key, run.path, run.config, run.environment, run.seconds, reused=False)

    def why(self, spec: RunSpec) -> str:
        """Say in one line why ``spec`` has to be computed, by comparing it with the nearest stored run."""
        final = self.folder(spec)
        if final.exists():
            try:
                self._open(final)
            except DamagedRun as damage:
                return str(damage)
            return "stored: nothing to compute"
        if any(_partial(final).glob("*")):
            return "an earlier computation was interrupted; it goes on from its last checkpoint"
        best: Sequence[str] | None = None
        for path in self._finished(spec.name):
            with contextlib.suppress(*_UNREADABLE):
                stored = json.loads((path / "key.json").read_text())
                changes = _changes(stored, spec.parts)
                if best is None or len(changes) < len(best):
                    best = changes
        if best is None:
            return "never computed"
        return "changed: " + "; ".join(best[:4]) + (f"; and {len(best) - 4} more" if len(best) > 4 else "")

    def list(self) -> tuple[Run, ...]:
        """Return all finished runs by name and key; only damage that prevents reading is noticed, and logged."""
        runs = []
        for path in self._finished("*"):
            try:
                runs.append(_read(path))
            except DamagedRun as damage:
                log.warning("%s %s: %s", path.parent.name, path.name, damage)
        return tuple(runs)

    def spec_of(self, run: Run) -> RunSpec:
        """Return what the run would be asked for with today's code and versions; its key is the run's own if
        nothing changed."""
        stored = json.loads((run.path / "key.json").read_text(encoding="utf-8"))
        return RunSpec(stored["name"], stored["config"], stored["data"], tuple(stored["code"]))

    def outdated(self) -> tuple[Run, ...]:
        """Return the finished runs that today's code cannot use: code or versions changed since."""
        found = []
        for run in self.list():
            with contextlib.suppress(*_UNREADABLE):
                if self.spec_of(run).key != run.key:
                    found.append(run)
        return tuple(found)

    def show(self, key: str) -> Run:
        """Return the run whose key starts with ``key``, checked.

        Raises:
            InputError: if no run or several runs match.
            DamagedRun: if its files do not agree with their checksums.
        """
        return self._open(self._find(key))

    def remove(self, key: str) -> Path:
        """Remove the run whose key starts with ``key``, finished or not, and return the folder that it had.

        Raises:
            InputError: if no run or several runs match.
        """
        path = self._find(key, unfinished=True)
        shutil.rmtree(path)
        return path

    def unfinished(self) -> Iterator[Path]:
        """Yield the folders of interrupted computations."""
        yield from sorted(self.root.glob("*/.*.partial"))

    def _find(self, key: str, *, unfinished: bool = False) -> Path:
        folders = list(self._finished("*")) + (list(self.unfinished()) if unfinished else [])
        matches = [path for path in folders if path.name.lstrip(".").startswith(key)] if key else []
        if len(matches) != 1:
            raise InputError(
                f"run key {key!r} matches {len(matches)} runs; 'fedlib runs list' shows the keys"
            )
        return matches[0]

    def _finished(self, name: str) -> tuple[Path, ...]:
        found = (path for path in self.root.glob(f"{name}/*") if _is_key(path.name) and path.is_dir())
        return tuple(sorted(found))

    def _open(self, path: Path) -> Run:
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            expected = dict(json.loads((path / "checksums.json").read_text()))
        except _UNREADABLE as error:
            raise DamagedRun("damaged: checksums.json cannot be read") from error
        found = _checksums(path)
        if names := sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)):
            raise DamagedRun(f"damaged: {', '.join(names)}")
        return _read(path)

    @contextlib.contextmanager
    def _lock(self, spec: RunSpec) -> Iterator[None]:
        path = self.root / spec.name / f".{spec.key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("%s %s: another process computes it; waiting", spec.name, spec.key)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _partial(final: Path) -> Path:
    return final.with_name(f".{final.name}.partial")


def _is_key(name: str) -> bool:
    return len(name) == _KEY_LENGTH and all(digit in "0123456789abcdef" for digit in name)


def _checksums(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): files.sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "checksums.json"
    }


def _read(path: Path) -> Run:
    try:
        environment = json.loads((path / "environment.json").read_text())
        seconds = float(environment.pop("seconds"))
        config = dict(json.loads((path / "config.json").read_text()))
    except _UNREADABLE as error:
        raise DamagedRun("damaged: environment.json or config.json cannot be read") from error
    return Run(path.parent.name, path.name, path, config, environment, seconds)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = {"config": "setting", "data": "data", "code": "code of", "versions": "version of"}
    changes = []
    for part, word in words.items():
        before, after = old.get(part, {}), new[part]
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                detail = f" {_short(before.get(name))} -> {_short(after.get(name))}"
                changes.append(f"{word} {name}" + (detail if part in ("config", "versions") else ""))
    return changes


def _short(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
