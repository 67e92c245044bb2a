"""One thread: networks of a few weights only wait for a second one."""

from collections.abc import Iterator

import pytest

from fedlib.federation.engine import one_thread


@pytest.fixture(autouse=True)
def single() -> Iterator[None]:
    with one_thread():
        yield
