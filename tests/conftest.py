"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _private_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's runs and data."""
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp("fedlib-home")))
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.delenv("FEDLIB_WORKERS", raising=False)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout under test."""
    return REPO


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of real samples; they are not part of the project, so tests that need them may skip."""
    folder = Path(os.environ.get("FEDLIB_TEST_DATA", REPO.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("real samples absent: set FEDLIB_TEST_DATA to a folder that holds them")
    return folder
