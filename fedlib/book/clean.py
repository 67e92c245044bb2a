"""Remove from an executed notebook what belongs to one machine or one moment."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from fedlib import paths

INJECTED_TAG = "injected-parameters"
_CELL_FILE = re.compile(r"[^\s'\"<>()]*/ipykernel_\d+/\d+\.py")
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}(?=>)")
_VOLATILE = ("papermill", "execution", "widgets")


def clean(node: NotebookNode, extra: dict[Path, str] | None = None) -> None:
    """Strip time stamps, durations, memory addresses and machine paths from ``node`` in place.

    Args:
        node: an executed notebook.
        extra: more folders to hide, each with the text that stands in its place.
    """
    for name in _VOLATILE:
        node.metadata.pop(name, None)
    hide = _hider(_places() | (extra or {}))
    for cell in node.cells:
        for name in _VOLATILE:
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags", [True]):
            del cell.metadata["tags"]  # papermill adds an empty list everywhere
        if INJECTED_TAG in cell.metadata.get("tags", []):
            cell.id = INJECTED_TAG  # papermill draws a random one
        if cell.cell_type == "code":
            cell.outputs = [hide(output) for output in cell.outputs]


def _places() -> dict[Path, str]:
    # Folders to hide; several may lie inside one another. No angle brackets: outputs may be HTML.
    places = {
        Path.home(): "~",
        Path(tempfile.gettempdir()): "[temporary]",
        Path(sys.prefix): "[python]",
        paths.state_root(): "[state]",
        paths.data_root(): "[data]",
    }
    if checkout := paths.repo_root():
        places[checkout] = "[repository]"
    return places


def _hider(places: dict[Path, str]) -> Any:
    texts = {str(path): word for path, word in places.items() if len(path.parts) > 1}
    # Longest first, so that a folder inside another is named as itself.
    ordered = sorted(texts, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, ordered))})(?![\w.-])")

    def hide(value: Any, kind: str = "") -> Any:
        if isinstance(value, str):
            if kind.startswith("image/") and kind != "image/svg+xml":
                return value
            value = _ADDRESS.sub("", _CELL_FILE.sub("[cell]", value))
            return pattern.sub(lambda match: texts[match[0]], value)
        if isinstance(value, dict):
            return type(value)({name: hide(item, name) for name, item in value.items()})
        if isinstance(value, list):
            return [hide(item, kind) for item in value]
        return value

    return hide
