"""The folders that fedlib reads and writes. No other module knows a path of its own."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def repo_root() -> Path | None:
    """Return the checkout that this package runs from, or None when it is installed without one."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir() else None


def state_root() -> Path:
    """Return the folder of everything computed: ``FEDLIB_HOME``, else ``.fedlib`` in the checkout, else the
    user's cache folder."""
    if home := os.environ.get("FEDLIB_HOME"):
        return Path(home).expanduser().resolve()
    checkout = repo_root()
    return checkout / ".fedlib" if checkout else Path(platformdirs.user_cache_dir("fedlib"))


def data_root() -> Path:
    """Return the folder of real data sets: ``FEDLIB_DATA``, else ``data`` in the state folder."""
    if data := os.environ.get("FEDLIB_DATA"):
        return Path(data).expanduser().resolve()
    return state_root() / "data"


def runs_root() -> Path:
    """Return the folder of the run store."""
    return state_root() / "runs"
