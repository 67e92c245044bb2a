"""Text and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def text(words: str) -> str:
    """Return plain words as Markdown that shows exactly them; a mean and its spread stay on one line."""
    return re.sub(
        r"([\\`*{\[\]<|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", " ".join(words.split())
    ).replace(" ± ", "\u00a0±\u00a0")


def pipe_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """Return a Markdown table. Cells are Markdown; columns named in ``numbers`` are set to the right."""
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"each row needs {len(head)} cells: {', '.join(head)}")
    right = set(numbers)
    lines = [
        _row(head),
        _row(["---:" if name in right else "---" for name in head]),
        *(_row(row) for row in rows),
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells) + " |"


def captioned(table: str, caption: str, name: str) -> str:
    """Return a table with a caption, which pages refer to by ``name``."""
    return f":::{{table}} {caption}\n:name: {name}\n\n{table}\n:::"


def definition(term: str, words: str) -> list[str]:
    """Return the lines of an entry of a definition list; none for an empty text."""
    return [term, f": {text(words)}", ""] if words else []
