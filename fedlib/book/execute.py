"""Execute notebooks: several at once, only the stale ones, each in a process of its own.

papermill runs into a temporary folder. Only a run that reached the marker of its last cell is cleaned, given
its manifest and moved into place; a failed one leaves the earlier executed copy as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Protocol

import nbformat

import fedlib
from fedlib import paths, workers
from fedlib.book import child, clean, key, processes
from fedlib.book.key import Inputs, Manifest
from fedlib.book.layout import Layout
from fedlib.book.notebook import Notebook, read
from fedlib.errors import InputError
from fedlib.files import write_atomic

HOUR = 3600.0
# An outer limit for one notebook; far above what any takes, it only catches runs that hang.
TIME_LIMITS = {"smoke": HOUR / 2, "quick": 2 * HOUR, "overnight": 48 * HOUR, "paper": 30 * 24 * HOUR}
_POLL_S = 0.05
_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "matplotlib",
    "papermill",
    "jupyter-book",
)


@dataclass(frozen=True)
class Job:
    """One notebook with the values of one run.

    Attributes:
        notebook: the source.
        target: where the executed copy goes.
        given: checked parameters that are set from outside.
        inputs: what the run depends on.
        reason: why it has to run, None if the executed copy is up to date.
    """

    notebook: Notebook
    target: Path
    given: dict[str, Any]
    inputs: Inputs
    reason: str | None

    @property
    def page(self) -> str:
        """Part and name of the notebook."""
        return self.notebook.page

    @property
    def profile(self) -> str | None:
        """Profile of the run."""
        return self.inputs.parameters.get("profile")


@dataclass(frozen=True)
class Failure:
    """Why a notebook did not finish.

    Attributes:
        cell: number of the cell in the source notebook (the first is 1), None if no cell started.
        error: name and text of the error.
        copy: where the unfinished notebook was kept, if there is one.
    """

    cell: int | None
    error: str
    copy: Path | None

    def __str__(self) -> str:
        place = f"in cell {self.cell}" if self.cell else "before its first cell"
        return f"{place}: {self.error}" + (f" (unfinished copy: {self.copy})" if self.copy else "")


@dataclass(frozen=True)
class Outcome:
    """The end of one page: a failure, or None for success."""

    page: str
    seconds: float
    failure: Failure | None


class Listener(Protocol):
    """Hears about the course of an execution."""

    def started(self, job: Job) -> None:
        """A notebook starts."""

    def finished(self, outcome: Outcome) -> None:
        """A notebook is in place, or failed."""


def readable(sources: Mapping[str, Path]) -> tuple[list[Notebook], list[Outcome]]:
    """Read source notebooks; return those that can run, and a failed outcome for each of the others.

    Args:
        sources: paths by page name.
    """
    sound, broken = [], []
    for page, path in sources.items():
        try:
            found = read(page, path)
            found.check({})
        except InputError as error:
            broken.append(Outcome(page, 0.0, Failure(None, str(error), None)))
        else:
            sound.append(found)
    return sound, broken


def plan(
    notebooks: Iterable[Notebook],
    layout: Layout,
    given: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> list[Job]:
    """Return a job for each notebook, in the given order, each saying whether and why it has to run.

    Args:
        notebooks: the sources.
        layout: where executed copies lie.
        given: parameters for all; each notebook receives those that it declares.
        force: run also what is up to date.

    Raises:
        InputError: if a value is not allowed.
    """
    jobs = []
    for notebook in notebooks:
        declared = {name: value for name, value in (given or {}).items() if name in notebook.parameters}
        new = job(notebook, layout.executed_copy(notebook.page), notebook.check(declared), layout.lock)
        jobs.append(replace(new, reason=new.reason or "forced") if force else new)
    return jobs


def job(notebook: Notebook, target: Path, given: dict[str, Any], lock: Path) -> Job:
    """Return the job that makes ``target`` from ``notebook``; ``given`` has to be checked before."""
    inputs = key.inputs(notebook, given, lock)
    return Job(notebook, target, given, inputs, key.stale_because(target, inputs))


def run(
    jobs: Iterable[Job], listener: Listener, *, at_once: int | None = None, time_limit: float | None = None
) -> list[Outcome]:
    """Execute the jobs that have a reason to run and return their outcomes.

    A failure does not stop the others. An interruption (Ctrl-C) or any other exception ends all running
    kernels before it is passed on; what was moved into place stays.

    Args:
        jobs: from ``plan``.
        listener: told of every start and end.
        at_once: how many notebooks run at the same time; the number of usable cores by default.
        time_limit: seconds for one notebook; by default the limit of its profile.

    Raises:
        InputError: before any starts, if a result could not be written or ``FEDLIB_WORKERS`` is not allowed.
    """
    # The longest first, by the time that the earlier copy took, so that no long one is left alone at the end.
    queue = sorted((job for job in jobs if job.reason), key=_expected_seconds, reverse=True)
    if queue:
        _check_surroundings(queue)
    slots = min(at_once or usable_cores(), len(queue))
    running: list[_Running] = []
    outcomes = []
    try:
        while queue or running:
            while queue and len(running) < slots:
                next_job = queue.pop(0)
                running.append(_Running(next_job, alone=slots == 1, time_limit=time_limit))
                listener.started(next_job)
            for item in [item for item in running if item.ended]:
                running.remove(item)
                outcomes.append(item.finish())
                listener.finished(outcomes[-1])
            time.sleep(_POLL_S)
    finally:
        for item in running:
            item.abandon()
    return outcomes


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def remove_orphans(layout: Layout) -> list[str]:
    """Remove executed copies whose source notebook is gone; return their page names."""
    sources = layout.sources()
    copies = layout.executed.rglob("*.ipynb")
    pages = {path.relative_to(layout.executed).with_suffix("").as_posix() for path in copies}
    orphans = sorted(pages - sources.keys())
    for page in orphans:
        layout.executed_copy(page).unlink()
    return orphans


def _check_surroundings(jobs: Iterable[Job]) -> None:
    """Refuse now what would otherwise show after hours of work."""
    workers.wanted()
    targets = [job.target for job in jobs]
    for target in targets:
        if target.is_dir():
            raise InputError(f"the executed copy would be {target}, which is a folder; give a file")
    for folder in sorted({paths.state_root(), *(target.parent for target in targets)}):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(f"nothing can be written to {folder}: {error.strerror}") from None


def _expected_seconds(item: Job) -> float:
    stored = key.manifest(item.target)
    return stored.seconds if stored else float("inf")


class _Running:
    """A notebook in execution: its process, its temporary folder and its limit."""

    def __init__(self, item: Job, *, alone: bool, time_limit: float | None) -> None:
        self.job = item
        self.mark = uuid.uuid4().hex
        self.limit = time_limit or TIME_LIMITS.get(item.profile or "quick", TIME_LIMITS["quick"])
        self.folder = Path(tempfile.mkdtemp(prefix="fedlib-notebook-"))
        nbformat.write(item.notebook.node, self.folder / child.SOURCE)
        (self.folder / child.JOB).write_text(json.dumps({"parameters": item.given}), encoding="utf-8")
        self.start = time.perf_counter()
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedlib.book.child", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(alone),
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends all others
            )

    def _environment(self, alone: bool) -> dict[str, str]:
        environment = os.environ | {
            processes.MARK: self.mark,
            "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of this environment, not one in the user's home
            "JUPYTER_RUNTIME_DIR": str(self.folder / "runtime"),
            "IPYTHONDIR": str(self.folder / "ipython"),  # without the user's start-up files and history
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning about frozen modules in the outputs
            "PYTHONHASHSEED": "0",
            "TQDM_DISABLE": "1",
            "PYTHONWARNINGS": "ignore:IProgress not found",  # a progress bar that no page shows
        }
        environment.pop("MPLBACKEND", None)  # the kernel chooses the inline backend
        if not alone:
            environment.setdefault("FEDLIB_WORKERS", "1")  # the cores are taken by the other notebooks
        return environment

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None or time.perf_counter() - self.start > self.limit

    def finish(self) -> Outcome:
        """Put the executed notebook into place, or keep the unfinished one aside."""
        timed_out = self.process.poll() is None
        self._end_processes()
        seconds = time.perf_counter() - self.start
        try:
            failure = self._time_failure() if timed_out else self._failure() or self._move_into_place()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        return Outcome(self.job.page, seconds, failure)

    def abandon(self) -> None:
        """End the run without a result."""
        self._end_processes()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_processes(self) -> None:
        # Also after a normal end: a kernel that was killed leaves its workers behind.
        processes.end(self.mark)
        self.process.wait()
        stdin: IO[bytes] | None = self.process.stdin
        if stdin:
            stdin.close()

    def _time_failure(self) -> Failure:
        return self._fail("TimeLimit", f"not finished after {self.limit:g} s")

    def _failure(self) -> Failure | None:
        try:
            self.result = json.loads((self.folder / child.RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            log = (self.folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = log[-1] if log else "no message"
            return self._fail("ProcessEnded", f"exit status {self.process.returncode}: {last}")
        if error := self.result["error"]:
            return self._fail(error["name"], error["text"])
        return None

    def _move_into_place(self) -> Failure | None:
        node = nbformat.read(self.folder / child.EXECUTED, as_version=4)
        if not key.is_finished(node):
            return self._fail("Unfinished", "the last cell did not write its marker (report.finish())")
        clean.clean(node, {self.folder: "[temporary]"})
        node.metadata[key.METADATA] = Manifest(
            page=self.job.page,
            profile=self.job.profile,
            parameters=self.job.inputs.parameters,
            given=self.job.given,
            seconds=round(self.result["seconds"], 1),
            peak_memory_mib=self.result["peak_memory_mib"],
            versions=_versions(),
            inputs=self.job.inputs,
            key=self.job.inputs.key,
            content=key.content(node),
        ).model_dump()
        nbformat.validate(node)
        write_atomic(self.job.target, nbformat.writes(node) + "\n")
        return None

    def _fail(self, name: str, text: str) -> Failure:
        executed = self.folder / child.EXECUTED
        cell = child.last_started_cell(executed)
        kept: Path | None = None
        if executed.exists():
            kept = paths.state_root() / "failed" / f"{self.job.page}.ipynb"
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(executed, kept)
        return Failure(cell, f"{name}: {text}" if text else name, kept)


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "fedlib": fedlib.__version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
