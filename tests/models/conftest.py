"""Fixtures of the detector's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """The detector flushes denormal numbers to zero, for the whole thread; other tests want them."""
    yield
    torch.set_flush_denormal(False)
