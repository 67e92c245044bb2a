"""The capped split keeps sizes close; the split of a public code loses and repeats samples, and says how many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.data import partition
from fedlib.data.lossy_partition import dirichlet_code
from fedlib.errors import InputError

LABELS = np.repeat(np.arange(8), 250)


def test_no_class_that_follows_goes_to_a_client_that_is_full() -> None:
    for seed in range(20):
        split = partition.dirichlet_capped(LABELS, 5, 0.3, seed)
        held = np.cumsum(split.class_counts(LABELS, 8), axis=1)
        full = held[:, :-1] >= len(LABELS) / 5
        assert (np.diff(held, axis=1)[full] == 0).all()


def test_the_cap_keeps_sizes_closer_than_the_plain_rule() -> None:
    capped = [partition.dirichlet_capped(LABELS, 5, 0.3, seed).sizes.std() for seed in range(40)]
    plain = [partition.dirichlet(LABELS, 5, 0.3, seed).sizes.std() for seed in range(40)]
    assert np.mean(capped) < 0.9 * np.mean(plain)


@pytest.mark.parametrize("rule", [partition.dirichlet, partition.dirichlet_capped])
def test_a_client_below_the_least_size_is_drawn_again_or_refused(rule: object) -> None:
    assert callable(rule)
    assert rule(LABELS, 5, 0.3, 0, min_size=50).sizes.min() >= 50
    with pytest.raises(InputError, match="no split of 5 draws"):
        rule(LABELS, 90, 0.001, 0, min_size=10, max_tries=5)


@pytest.mark.parametrize("alpha", [1e-3, 0.3, 1e3])
def test_the_capped_rule_ends_for_any_concentration(alpha: float) -> None:
    for clients in (1, 2, 90):
        split = partition.dirichlet_capped(LABELS, clients, alpha, 0)
        assert split.sizes.sum() == len(LABELS)


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    clients=st.integers(1, 20),
    seed=st.integers(0, 5),
    alpha=st.sampled_from([1e-3, 0.3, 10.0]),
)
@settings(max_examples=100, deadline=1000)
def test_the_code_split_fills_up_and_counts_what_it_did(
    labels: list[int], clients: int, seed: int, alpha: float
) -> None:
    array = np.array(labels)
    bare = dirichlet_code(array, clients, alpha, seed, min_size=0)
    if (bare.sizes > 0).sum() < 2:  # a client to fill up may find nothing to copy
        return
    split = dirichlet_code(array, clients, alpha, seed, min_size=4)
    assert split.sizes.min() >= 4
    everything = np.concatenate(split.clients)
    assert split.coverage == len(set(everything.tolist())) / len(array)
    assert split.duplicates == len(everything) - len(set(everything.tolist()))


def test_the_code_split_repeats_nothing_before_it_fills_up() -> None:
    split = dirichlet_code(LABELS, 5, 0.3, 0, min_size=0)
    assert split.duplicates == 0
    assert 0.3 < split.coverage < 1


def test_one_client_after_the_other_takes_until_a_class_runs_out() -> None:
    split = dirichlet_code(np.zeros(10, dtype=np.int64), 3, 0.3, 0, min_size=0)
    assert split.sizes.tolist() == [10, 0, 0]  # with one class every share is 1


def test_the_code_split_is_a_function_of_the_seed() -> None:
    first, again, other = (dirichlet_code(LABELS, 5, 0.3, seed).clients for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_a_client_that_has_nobody_to_copy_from_is_named() -> None:
    with pytest.raises(InputError, match="client 0 holds 3 of min_size = 4 samples and no other client"):
        dirichlet_code(np.zeros(3, dtype=np.int64), 1, 0.3, 0, min_size=4)


@pytest.mark.parametrize(("clients", "alpha", "least"), [(0, 0.3, 50), (5, 0.0, 50), (5, 0.3, -1)])
def test_values_out_of_range_are_refused(clients: int, alpha: float, least: int) -> None:
    with pytest.raises(InputError, match="allowed"):
        dirichlet_code(LABELS, clients, alpha, 0, min_size=least)
