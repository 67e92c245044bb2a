"""A CSV file that only grows."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class GrowingTable:
    """A CSV file with a running checksum, so that a checkpoint can name a state of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.digest = path, 0, hashlib.sha256()

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows at the end."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode()
        with self.path.open("ab") as file:
            file.write(content)
        self.size += len(content)
        self.digest.update(content)

    def mark(self) -> dict[str, Any]:
        """Return what names the present state: size and SHA-256."""
        return {"size": self.size, "sha256": self.digest.hexdigest()}

    def matches(self, mark: Mapping[str, Any]) -> bool:
        """Say whether the file begins with the state that ``mark`` names."""
        content = self.path.read_bytes()[: mark["size"]]
        return len(content) == mark["size"] and hashlib.sha256(content).hexdigest() == mark["sha256"]

    def cut(self, mark: Mapping[str, Any]) -> None:
        """Go back to the state that ``mark`` names; the file must match it."""
        with self.path.open("r+b") as file:
            self.size, self.digest = mark["size"], hashlib.sha256(file.read(mark["size"]))
            file.truncate(self.size)
