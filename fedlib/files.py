"""Files that are either whole and checked or absent: atomic writes, checksums, tensors without pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

_UMASK = os.umask(0)
os.umask(_UMASK)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_atomic(path: Path, content: bytes | str) -> str:
    """Write ``content`` so that ``path`` holds the old content or the new, never a part; return its SHA-256.

    Raises:
        OSError: as the system says it (a full disk, for example); the unfinished file is removed first.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o666 & ~_UMASK)  # mkstemp files are private, results need not be
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return hashlib.sha256(data).hexdigest()


def write_json(path: Path, value: Any) -> str:
    """Write ``value`` as readable JSON with sorted keys, atomically; return the file's SHA-256."""
    return write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write named tensors as safetensors, atomically; return the file's SHA-256.

    The memory format (channels_last, say) is not kept: values are stored row-major.
    """
    from safetensors.torch import save  # here, so that looking at stored runs does not load torch

    return write_atomic(
        path, save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read what ``write_tensors`` wrote."""
    from safetensors.torch import load_file

    return load_file(path)


def read_table(path: Path) -> DataFrame:
    """Read a CSV table with every float exactly as it was written; only an empty field is missing."""
    import pandas as pd

    # Before 3.1 the default parser may miss the last digit; from 3.1 on it is exact and the option deprecated.
    exact = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
    options: dict[str, Any] = {} if exact else {"float_precision": "round_trip"}
    return pd.read_csv(path, keep_default_na=False, na_values=[""], **options)  # "None" and "NA" are words
