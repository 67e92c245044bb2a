"""``fedlib doctor``: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

OK, NOTE, MISSING = "ok", "note", "missing"
_ENOUGH_DISK_GIB = 5.0
_PYTHONS = ((3, 11), (3, 14))  # first allowed, first not allowed
# In the lock for machines with a GPU; everything runs without them.
_GPU_PACKAGES = ("nvidia-", "cuda-", "triton")


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``state`` is ok, note (nothing needed is missing) or missing."""

    what: str
    state: str
    found: str
    what_to_do: str = ""


def doctor() -> None:
    """Check this machine. Exit status 1 if something needed is missing, else 0."""
    from fedlib import paths
    from fedlib.cli import console

    root = paths.repo_root()
    findings = [
        *python(),
        *packages(root / "requirements.lock" if root else None),
        *machine(),
        *disk(),
        *data(),
    ]
    out = console.console()
    rows = [(finding.what, finding.state, finding.found, finding.what_to_do) for finding in findings]
    out.print(console.table(("what", "state", "found", "what to do"), rows))
    missing = sum(finding.state == MISSING for finding in findings)
    console.say(out, f"{missing} needed things are missing" if missing else "nothing needed is missing")
    if missing:
        raise typer.Exit(1)


def python() -> Iterator[Finding]:
    """Check the Python version."""
    first, end = _PYTHONS
    good = first <= sys.version_info[:2] < end
    advice = "" if good else f"use Python {first[0]}.{first[1]} to {end[0]}.{end[1] - 1}"
    yield Finding("Python", OK if good else MISSING, platform.python_version(), advice)


def packages(lock: Path | None) -> Iterator[Finding]:
    """Compare the installed packages with the lock file, for the lines that apply to this machine."""
    from importlib import metadata

    from packaging.requirements import Requirement

    if lock is None or not lock.is_file():
        yield Finding(
            "packages", NOTE, "no requirements.lock here", "use a clone of the repository to compare"
        )
        return
    lines = (line.partition("#")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines())
    wanted = [Requirement(line) for line in lines if line]
    wanted = [
        requirement for requirement in wanted if requirement.marker is None or requirement.marker.evaluate()
    ]
    install = f"pip install --no-deps -r {lock.name}"
    gaps = []
    for requirement in wanted:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            needed = not requirement.name.startswith(_GPU_PACKAGES)
            gaps.append(Finding(requirement.name, MISSING if needed else NOTE, "not installed", install))
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            found = f"{version}, locked is {requirement.specifier}"
            gaps.append(Finding(requirement.name, NOTE, found, f"numbers may differ; {install}"))
    yield Finding("packages", NOTE if gaps else OK, f"{len(wanted) - len(gaps)} of {len(wanted)} as locked")
    yield from gaps


def machine() -> Iterator[Finding]:
    """Report cores, workers and GPU."""
    import os

    import torch

    from fedlib.book.execute import usable_cores
    from fedlib.errors import InputError
    from fedlib.workers import wanted

    workers = os.environ.get("FEDLIB_WORKERS")
    try:
        wanted()
        state, advice = OK, ""
    except InputError as error:
        state, advice = MISSING, str(error)
    yield Finding("cores", OK, str(usable_cores()), "")
    words = f"FEDLIB_WORKERS={workers}" if workers else "chosen by the library"
    yield Finding("workers", state, words, advice)
    yield Finding("processor", OK, f"{torch.backends.cpu.get_cpu_capability()} instructions")
    if torch.cuda.is_available():
        yield Finding("GPU", OK, torch.cuda.get_device_name())
    else:
        yield Finding("GPU", NOTE, "none", "needed only for the paper profile")


def disk() -> Iterator[Finding]:
    """Report the free space where results are stored."""
    from fedlib import paths

    folder = paths.state_root()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    good = free >= _ENOUGH_DISK_GIB
    advice = "" if good else f"free {_ENOUGH_DISK_GIB:g} GiB, or set FEDLIB_HOME to a folder on another disk"
    yield Finding("disk", OK if good else NOTE, f"{free:.1f} GiB free in {existing}", advice)


def data() -> Iterator[Finding]:
    """Report the data sets; none but the embedded one is needed."""
    from fedlib.data import available, find

    found = [find(name) for name in available()]
    here = [item.name for item in found if item.present]
    yield Finding(
        "data here", OK if here else MISSING, ", ".join(here), "" if here else "reinstall the packages"
    )
    absent = len(found) - len(here)
    yield Finding("data absent", NOTE if absent else OK, str(absent), "'fedlib data' says how to get each")
