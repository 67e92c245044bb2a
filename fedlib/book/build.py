"""Build the book from the executed notebooks, when anything that it depends on changed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedlib.book import key
from fedlib.book.layout import Layout
from fedlib.files import write_atomic

_COMMAND = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
_OPTIONS = ("--all", "-W", "-n", "--keep-going")
_MADE = ("_build", "_executed", "_generated")
# When the date of the last commit is not known: the first date that every archive format can hold.
_NO_DATE = "315532800"
_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Exception|Traceback")
_MAX_COMPLAINTS = 30
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class BuildError(Exception):
    """The book cannot be built; the message says which pages are missing or what the build complains about."""


@dataclass(frozen=True)
class Built:
    """A book that is up to date.

    Attributes:
        index: its first page.
        fresh: True if it was built now, False if nothing had changed.
    """

    index: Path
    fresh: bool


def build(layout: Layout, *, force: bool = False) -> Built:
    """Make the generated pages and the site, unless they are up to date.

    Args:
        layout: the folders of the book.
        force: build also when nothing changed.

    Raises:
        BuildError: if a page of the table of contents has no sound executed copy, or the build has warnings.
    """
    check_executed(layout)
    index, stamp = layout.html / "index.html", layout.html.parent / "inputs.sha256"
    inputs = digest(layout)
    if not force and index.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs:
        return Built(index, fresh=False)
    stamp.unlink(missing_ok=True)
    # Pages that left the table of contents would stay in the folder of an earlier build.
    shutil.rmtree(layout.html, ignore_errors=True)
    from fedlib.book import pages

    pages.generate(layout.book, layout.executed, layout.generated)
    _jupyter_book(layout)
    write_atomic(stamp, inputs)
    return Built(index, fresh=True)


def executed_pages(layout: Layout) -> list[str]:
    """Return the pages of the table of contents that are executed notebooks, in its order."""
    toc = yaml.safe_load((layout.book / "_toc.yml").read_text(encoding="utf-8"))
    prefix = f"{layout.executed.name}/"
    return [name.removeprefix(prefix) for name in _files(toc) if name.startswith(prefix)]


def check_executed(layout: Layout) -> None:
    """Check that every notebook of the table of contents was executed to its end without an error.

    Raises:
        BuildError: naming each page that was not, and why.
    """
    problems = []
    for page in executed_pages(layout):
        path = layout.executed_copy(page)
        problem = key.damaged_because(path) if path.exists() else "never executed"
        if problem:
            problems.append(f"{page}: {problem}")
    if problems:
        raise BuildError("pages without results:\n" + "\n".join(problems))


def digest(layout: Layout) -> str:
    """Return the SHA-256 of all that the site depends on.

    That is the sources of the book, the executed notebooks, the library (for the API pages, and because it
    makes the generated pages) and the lock.
    """
    sources = [
        path
        for path in layout.book.rglob("*")
        if path.relative_to(layout.book).parts[0] not in _MADE and "__pycache__" not in path.parts
    ]
    executed = [layout.executed_copy(page) for page in executed_pages(layout)]
    package = Path(key.__file__).resolve().parents[1]
    library = [path for path in package.rglob("*") if path.suffix in (".py", ".yaml", ".csv")]
    total = hashlib.sha256()
    for root, group in ((layout.root, [*sources, *executed, layout.lock]), (package, library)):
        for path in sorted(path for path in group if path.is_file()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def source_date(layout: Layout) -> str:
    """Return the time of the last commit in seconds, so that two builds of the same sources are equal."""
    try:
        git = ["git", "-C", str(layout.root), "log", "-1", "--format=%ct"]
        found = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return _NO_DATE
    return found or _NO_DATE


def _jupyter_book(layout: Layout) -> None:
    log = layout.html.parent / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment.setdefault("SOURCE_DATE_EPOCH", source_date(layout))
    command = [sys.executable, "-c", _COMMAND, "build", str(layout.book), *_OPTIONS]
    with log.open("wb") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    if done.returncode:
        lines = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace")).splitlines()
        complaints = [line for line in lines if _COMPLAINT.search(line)] or lines[-_MAX_COMPLAINTS:]
        text = "\n".join(complaints[:_MAX_COMPLAINTS])
        raise BuildError(f"jupyter-book ended with status {done.returncode} (full log: {log}):\n{text}")


def _files(node: Any) -> list[str]:
    # The table of contents nests parts, chapters and sections; each page is a "file" (or the "root").
    if isinstance(node, list):
        return [name for item in node for name in _files(item)]
    if not isinstance(node, dict):
        return []
    own = [str(node[word]) for word in ("root", "file") if word in node]
    return own + [name for value in node.values() for name in _files(value)]
