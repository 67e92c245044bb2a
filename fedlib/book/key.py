"""When is an executed notebook stale, and why.

The executed copy carries a manifest in its metadata under ``fedlib``. It says what the copy was made from, so
that a comparison with the present sources names what changed, and holds a checksum of the cells and outputs,
so that a damaged copy is noticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from pydantic import BaseModel, ConfigDict, ValidationError

from fedlib.book.notebook import Notebook
from fedlib.runs import code

METADATA = "fedlib"
MIME = "application/vnd.fedlib+json"


class Inputs(BaseModel):
    """All that an executed notebook depends on.

    Attributes:
        notebook: SHA-256 of the cells of the source notebook.
        parameters: every parameter's value in the run.
        modules: SHA-256 of each fedlib source file that the notebook reaches by imports.
        lock: SHA-256 of the lock file.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    notebook: str
    parameters: dict[str, Any]
    modules: dict[str, str]
    lock: str

    @property
    def key(self) -> str:
        """SHA-256 over all inputs."""
        return _digest(self.model_dump())


class Manifest(BaseModel):
    """What an executed notebook says about its run.

    Attributes:
        page: part and name of the notebook.
        profile: size of the run, None for a notebook without a profile.
        parameters: every parameter's value in the run.
        given: the parameters that were set from outside, a subset of ``parameters``.
        seconds: wall time, kernel start included.
        peak_memory_mib: largest resident memory of one process of the run.
        versions: versions of Python and the main packages.
        inputs: what the run depends on; ``key`` is their hash.
        key: see ``inputs``.
        content: SHA-256 of the cells with their outputs.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    page: str
    profile: str | None
    parameters: dict[str, Any]
    given: dict[str, Any]
    seconds: float
    peak_memory_mib: int
    versions: dict[str, str]
    inputs: Inputs
    key: str
    content: str


def inputs(notebook: Notebook, given: dict[str, Any], lock: Path) -> Inputs:
    """Return what a run of ``notebook`` with the parameters ``given`` depends on."""
    cells = [
        {"type": cell.cell_type, "source": cell.source, "metadata": cell.metadata}
        for cell in notebook.node.cells
    ]
    return Inputs(
        notebook=_digest(cells),
        # Through JSON, as they come back from a stored manifest.
        parameters=json.loads(json.dumps(notebook.defaults | given)),
        modules=code.module_hashes(notebook.modules),
        lock=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else "",
    )


def changes(old: Inputs, new: Inputs) -> list[str]:
    """Say what differs between two runs' inputs, one phrase each."""
    found = []
    if old.notebook != new.notebook:
        found.append("the notebook's text changed")
    for name in sorted(old.parameters.keys() | new.parameters.keys()):
        before, after = (_shown(i.parameters[name]) if name in i.parameters else "absent" for i in (old, new))
        if before != after:
            found.append(f"parameter {name}: {before} -> {after}")
    names = sorted(old.modules.keys() | new.modules.keys())
    modules = [name for name in names if old.modules.get(name) != new.modules.get(name)]
    if modules:
        more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
        found.append(f"library changed: {', '.join(modules[:3])}{more}")
    if old.lock != new.lock:
        found.append("requirements.lock changed")
    return found


def content(node: NotebookNode) -> str:
    """Return the checksum of a notebook's cells and outputs."""
    return _digest(node.cells)


def manifest(path: Path) -> Manifest | None:
    """Return the manifest of an executed notebook, or None if there is none that can be read."""
    node = _read(path)
    return None if node is None else _manifest(node)


def stale_because(path: Path, new: Inputs) -> str | None:
    """Say why the executed notebook ``path`` has to be made again, or return None if it is up to date."""
    if not path.exists():
        return "never executed"
    if damage := damaged_because(path):
        return damage
    stored = manifest(path)
    assert stored is not None  # otherwise damaged
    if stored.key == new.key:
        return None
    return "; ".join(changes(stored.inputs, new))


def damaged_because(path: Path) -> str | None:
    """Say what is wrong with an executed notebook, or return None if it is whole and finished."""
    node = _read(path)
    if node is None:
        return "the executed copy is damaged: it is not a notebook"
    stored = _manifest(node)
    if stored is None:
        return "the executed copy is damaged: its manifest cannot be read"
    if stored.content != content(node) or stored.key != stored.inputs.key:
        return "the executed copy is damaged: it does not agree with its checksum"
    if has_error(node):
        return "the executed copy holds an error output"
    if not is_finished(node):
        return "the executed copy lacks the marker of its last cell"
    return None


def outputs(node: NotebookNode) -> list[NotebookNode]:
    """Return all outputs of a notebook in order."""
    return [output for cell in node.cells if cell.cell_type == "code" for output in cell.outputs]


def has_error(node: NotebookNode) -> bool:
    """Return whether any cell ended in an error."""
    return any(output.output_type == "error" for output in outputs(node))


def is_finished(node: NotebookNode) -> bool:
    """Return whether the last code cell wrote the marker of ``report.finish()``."""
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
    payloads = [output.get("data", {}).get(MIME) for output in cells[-1].outputs] if cells else []
    return any(isinstance(payload, dict) and payload.get("kind") == "finished" for payload in payloads)


def _read(path: Path) -> NotebookNode | None:
    try:
        node = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(node)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):
        return None
    return node


def _manifest(node: NotebookNode) -> Manifest | None:
    try:
        return Manifest.model_validate(node.metadata.get(METADATA))
    except ValidationError:
        return None


def _shown(value: Any) -> str:
    # The members of a stored dict come back in another order.
    return repr(dict(sorted(value.items())) if isinstance(value, dict) else value)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
