"""Random geometry for the tests of MPT; one torch thread, so that shared cores stay free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedlib import seeds


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def close() -> Callable[..., None]:
    """Equal numbers, both as float64: ``close(found, expected, tolerance)``, absolute and relative."""

    def check(found: Tensor | float, expected: Tensor | float | list, tolerance: float = 1e-9) -> None:
        a, b = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
        assert_close(a, b, atol=tolerance, rtol=tolerance)

    return check


@pytest.fixture
def random() -> Callable[..., Tensor]:
    """Normal float64 tensors: ``random(seed, *shape)``."""

    def draw(seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=seeds.torch_generator(seed, "test"), dtype=torch.float64)

    return draw


@pytest.fixture
def spd(random: Callable[..., Tensor]) -> Callable[[int, int], Tensor]:
    """Symmetric positive definite matrices: ``spd(seed, d)``."""

    def draw(seed: int, d: int) -> Tensor:
        root = random(seed, d, 2 * d)
        return root @ root.T / (2 * d) + 0.05 * torch.eye(d, dtype=torch.float64)

    return draw


@pytest.fixture
def rotation(random: Callable[..., Tensor]) -> Callable[[int, int], Tensor]:
    """Orthogonal matrices: ``rotation(seed, d)``."""
    return lambda seed, d: torch.linalg.qr(random(seed, d, d))[0]
