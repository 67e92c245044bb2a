"""What the readers of local files share: checksums, downloads that leave no half file, errors with a path."""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedlib.errors import InputError


@dataclass(frozen=True)
class Found:
    """Whether a data set is on this machine.

    Attributes:
        name: name for :func:`fedlib.data.load`.
        present: whether its files are there (they are checked when they are loaded).
        where: the file or folder; None if absent, or if the data set is part of a Python package.
        what_to_do: how to get it, or an empty string if it is present.
    """

    name: str
    present: bool
    where: Path | None
    what_to_do: str


def md5(path: Path) -> str:
    """Return the MD5 of a file in hex: the kind of checksum that the publishers of these sets give."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into an InputError that starts with its path."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        raise InputError(
            f"{path}: damaged or not of the expected format ({error}); replace the file"
        ) from error


def table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column name, without surrounding spaces; an absent value is an empty text.

    Raises:
        InputError: no such file, not text, no rows, or a column of ``columns`` missing; the message has the path.
    """
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if missing := [column for column in columns if column not in (reader.fieldnames or [])]:
            raise InputError(f"has no column {', '.join(missing)}; needed: {', '.join(columns)}")
        rows = [{key: (row[key] or "").strip() for key in reader.fieldnames or []} for row in reader]
        if not rows:
            raise InputError("has no rows")
        return rows


def fetch(folder: Path, download: Callable[[Path], object], files: Iterable[str], what_to_do: str) -> None:
    """Run ``download`` in a temporary folder and move ``files`` from there into ``folder``.

    A download that fails or is killed therefore never leaves a partial file where one is looked for.

    Args:
        folder: where the files are to lie; made if needed.
        download: called with the temporary folder.
        files: paths below the temporary folder, and in the end below ``folder``.
        what_to_do: shown if it fails, for example for want of a network.

    Raises:
        InputError: the download failed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as name:
            temporary = Path(name)
            download(temporary)
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / file, folder / file)
    except (OSError, RuntimeError) as error:
        # torchvision and medmnist put advice below the first line; ours names the exact folder
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"download into {folder} failed ({reason}). {what_to_do}") from error
