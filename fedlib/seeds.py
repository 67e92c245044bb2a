"""Independent random streams from one seed.

Every random draw of the library comes from a generator made here. A stream is named by a path, for example
``(seed, "batches", round, client)``, so that a draw depends on what it is for and never on what was drawn
before it: results do not change with the number of workers, the order of clients or an interruption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedlib.errors import InputError


def integer(seed: int, *path: int | str) -> int:
    """Return a 63-bit integer that is fixed by ``seed`` and ``path`` (SHA-256, so streams do not overlap).

    Raises:
        InputError: if ``seed`` is not a non-negative integer, or an item of ``path`` is neither int nor str.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}; allowed: an integer >= 0")
    digest = hashlib.sha256(str(int(seed)).encode())
    for item in path:
        if isinstance(item, bool) or not isinstance(item, int | np.integer | str):
            raise InputError(f"a random stream is named by integers and strings, not by {item!r}")
        kind = "s" if isinstance(item, str) else "i"
        digest.update(f"\x1f{kind}{item}".encode())
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def rng(seed: int, *path: int | str) -> np.random.Generator:
    """Return the numpy generator of the stream ``(seed, *path)``."""
    return np.random.default_rng(integer(seed, *path))


def torch_generator(seed: int, *path: int | str) -> torch.Generator:
    """Return the CPU torch generator of the stream ``(seed, *path)``."""
    return torch.Generator().manual_seed(integer(seed, *path))


@contextmanager
def torch_global(seed: int, *path: int | str) -> Iterator[None]:
    """Seed torch's global streams inside the block and put the old state back afterwards.

    For the few places that take no generator: weight initialisation and dropout. A GPU's stream is seeded too
    where one is in use.
    """
    value = integer(seed, *path)
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(value)
        if devices:
            torch.cuda.manual_seed_all(value)
        yield
