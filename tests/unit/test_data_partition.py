"""Partitions: each sample has one owner, the skew is what alpha says, and nothing runs for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.data import Partition, partition
from fedlib.errors import InputError

LABELS = np.repeat(np.arange(10), 500)
RULES: dict[str, Callable[[np.ndarray, int, int], Partition]] = {
    "iid": partition.iid,
    "stratified": partition.stratified,
    "dirichlet": lambda labels, clients, seed: partition.dirichlet(labels, clients, 0.3, seed),
    "dirichlet_capped": lambda labels, clients, seed: partition.dirichlet_capped(labels, clients, 0.3, seed),
    "departure": lambda labels, clients, seed: partition.departure(
        labels, clients, int(labels.flat[0]), 0.1, seed
    ),
}


def assert_partition(split: Partition, total: int) -> None:
    everything = np.concatenate([*split.clients, split.left_out])
    assert np.array_equal(np.sort(everything), np.arange(total))
    assert all(client.dtype == np.int64 for client in split.clients)


@pytest.mark.parametrize("rule", RULES)
@given(
    labels=st.lists(st.integers(0, 6), min_size=2, max_size=80),
    clients=st.integers(1, 90),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=1000)
def test_no_index_twice_and_none_lost(rule: str, labels: list[int], clients: int, seed: int) -> None:
    array = np.array(labels)
    try:
        split = RULES[rule](array, clients, seed)
    except InputError:
        # the only reasons: more clients than samples; nobody to leave; a rare class with one sample
        assert clients > len(labels) or (rule == "departure" and (clients < 2 or labels.count(labels[0]) < 2))
        return
    assert len(split) == clients
    assert_partition(split, len(labels))


@pytest.mark.parametrize("rule", RULES)
def test_split_is_a_function_of_the_seed(rule: str) -> None:
    first, again, other = (RULES[rule](LABELS, 7, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, again.clients))
    assert not all(np.array_equal(a, b) for a, b in zip(first.clients, other.clients))


@pytest.mark.parametrize("rule", RULES)
def test_global_random_state_plays_no_part(rule: str) -> None:
    np.random.seed(1)  # noqa: NPY002
    first = RULES[rule](LABELS, 7, 0)
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    again = RULES[rule](LABELS, 7, 0)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, again.clients))


def test_iid_and_stratified_are_as_even_as_can_be() -> None:
    labels = np.random.default_rng(0).integers(0, 7, 1001)
    for split in (partition.iid(labels, 13, 0), partition.stratified(labels, 13, 0)):
        assert np.ptp(split.sizes) <= 1
    assert np.ptp(split.class_counts(labels, 7), axis=0).max() <= 1


def largest_share(alpha: float) -> float:
    counts = [partition.dirichlet(LABELS, 10, alpha, seed).class_counts(LABELS, 10) for seed in range(5)]
    shares = [row.max() / row.sum() for table in counts for row in table if row.sum()]
    return float(np.mean(shares))


def test_alpha_controls_the_skew() -> None:
    assert largest_share(0.1) > 0.5
    assert largest_share(1000) < 0.2
    assert largest_share(0.1) > largest_share(0.5) > largest_share(5) > largest_share(1000)


def test_shares_of_a_class_follow_the_dirichlet_law() -> None:
    # a share of Dir(alpha, ..., alpha) over K clients has mean 1/K and variance (K - 1) / (K^2 (K alpha + 1))
    alpha, clients = 0.5, 5
    shares = np.stack(
        [partition.dirichlet(LABELS, clients, alpha, seed).class_counts(LABELS, 10) for seed in range(60)]
    )
    shares = shares / 500
    assert shares.mean() == pytest.approx(1 / clients)
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.var() == pytest.approx(expected, rel=0.1)
    assert shares.mean(axis=(0, 2)) == pytest.approx(np.full(clients, 0.2), abs=0.03)  # no favourite client


def test_every_dirichlet_split_ends_within_a_second() -> None:
    for n in (1, 10, 5000):
        for classes in (1, 2, 10):
            labels = np.arange(n) % classes
            for clients in (1, 2, 20, 200):
                for alpha in (1e-300, 1e-3, 0.1, 1.0, 1e3, 1e300):
                    for min_size in (0, 1, 10):
                        start = time.perf_counter()
                        try:
                            split = partition.dirichlet(labels, clients, alpha, 0, min_size=min_size)
                        except InputError:
                            pass
                        else:
                            assert_partition(split, n)
                            assert split.sizes.min() >= min_size
                        assert time.perf_counter() - start < 1


def test_unreachable_minimum_is_given_up_with_the_constraint_named() -> None:
    labels = np.repeat([0, 1], 500)
    with pytest.raises(
        InputError, match="100 draws .* min_size = 10 .* num_clients = 20, or raise alpha = 0.1"
    ):
        partition.dirichlet(labels, 20, 0.1, 0, min_size=10)
    with pytest.raises(InputError, match="min_size is 60, but 1000 samples give 20 clients at most 50 each"):
        partition.dirichlet(labels, 20, 100, 0, min_size=60)


def test_minimum_size_is_reached_by_drawing_again() -> None:
    seed = next(s for s in range(20) if partition.dirichlet(LABELS, 10, 0.3, s).sizes.min() < 150)
    assert partition.dirichlet(LABELS, 10, 0.3, seed, min_size=150, max_tries=1000).sizes.min() >= 150


def test_empty_clients_are_legal_and_nothing_is_moved_to_fill_them() -> None:
    split = partition.dirichlet(LABELS, 200, 1e-3, 0)
    assert split.sizes.min() == 0
    assert (split.class_counts(LABELS, 10) > 0).sum() < 20  # ten classes, nearly one client each


def test_absent_classes_are_legal() -> None:
    labels = np.array([2, 2, 9, 9, 9, 40])
    assert_partition(partition.dirichlet(labels, 3, 0.5, 0), 6)
    assert_partition(partition.departure(labels, 3, 9, 0.3, 0), 6)


@pytest.mark.parametrize("fraction", [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
def test_departing_client_holds_the_stated_share(fraction: float) -> None:
    counts = partition.departure(LABELS, 10, 3, fraction, 0).class_counts(LABELS, 10)
    assert counts[0, 3] == min(499, round((1 - fraction) * 500))
    assert counts[1:, 3].sum() == 500 - counts[0, 3] >= 1
    assert np.ptp(counts[1:, 3]) <= 1
    assert counts.sum() == len(LABELS)


def test_one_rare_sample_always_remains_somewhere() -> None:
    labels = np.array([0] * 20 + [1] * 5)
    keepers = set()
    for seed in range(20):
        counts = partition.departure(labels, 4, 1, 0.001, seed).class_counts(labels, 2)
        assert counts[0, 1] == 4
        keepers.add(int(counts[1:, 1].argmax()))
    assert keepers == {0, 1, 2}


def test_departure_refuses_impossible_requests() -> None:
    for fraction in (0, -0.1, 1.1, float("nan"), True, "0.1"):
        with pytest.raises(InputError, match="remaining_fraction"):
            partition.departure(LABELS, 10, 3, fraction, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"rare_class is 11, of which there are 0 samples.*\[0, 1, 2"):
        partition.departure(LABELS, 10, 11, 0.1, 0)
    with pytest.raises(InputError, match="num_clients is 1; allowed: at least 2"):
        partition.departure(LABELS, 1, 3, 0.1, 0)


@pytest.mark.parametrize("rule", RULES)
def test_bad_arguments_are_named(rule: str) -> None:
    deal = RULES[rule]
    with pytest.raises(InputError, match="num_clients is 5001; allowed: at most the number of samples, 5000"):
        deal(LABELS, 5001, 0)
    for clients in (0, 2.0, True):
        with pytest.raises(InputError, match="num_clients"):
            deal(LABELS, clients, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed"):
        deal(LABELS, 5, -1)
    for labels in (LABELS[:, None], LABELS * 0.5, LABELS - 1):
        with pytest.raises(InputError, match="labels"):
            deal(labels, 5, 0)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf"), "0.5", True])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        partition.dirichlet(LABELS, 5, alpha, 0)
    with pytest.raises(InputError, match="alpha"):
        partition.departure(LABELS, 5, 1, 0.1, 0, alpha)


def test_no_labels_at_all_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        partition.iid(np.array([], dtype=int), 1, 0)


def test_each_domain_becomes_one_client_in_sorted_order() -> None:
    split = partition.by_domain(["rain", "day", "night", "day"])
    assert [client.tolist() for client in split.clients] == [[1, 3], [2], [0]]
    assert [client.tolist() for client in partition.by_domain([5, 2, 5]).clients] == [[1], [0, 2]]
    with pytest.raises(InputError, match="domains"):
        partition.by_domain([0.5, 1.5])  # type: ignore[list-item]
    with pytest.raises(InputError, match="domains"):
        partition.by_domain([])


def test_hand_made_partitions_are_checked() -> None:
    def made(*clients: list[int], left_out: tuple[int, ...] = ()) -> Partition:
        return Partition(tuple(np.array(c, dtype=int) for c in clients), 4, np.array(left_out, dtype=int))

    assert made([0, 2], [], left_out=(1, 3)).sizes.tolist() == [2, 0]
    with pytest.raises(InputError, match="index 2 is given to 2 owners"):
        made([0, 1, 2], [2, 3])
    with pytest.raises(InputError, match="index 3 has no owner"):
        made([0, 1], [2])
    with pytest.raises(InputError, match=r"index 4 is outside 0\.\.3"):
        made([0, 1, 2, 3, 4])
    with pytest.raises(InputError, match=r"index -1 is outside"):
        made([0, 1, 2, -1])
    with pytest.raises(InputError, match="at least one client"):
        made()
    with pytest.raises(InputError, match="1-D integers"):
        Partition((np.array([0.0, 1.0]),), 2, np.array([], dtype=int))


def test_partition_cannot_be_changed_afterwards() -> None:
    split = partition.iid(LABELS, 3, 0)
    with pytest.raises(ValueError, match="read-only"):
        split.clients[0][0] = 1


def test_class_counts_need_the_labels_that_were_split() -> None:
    split = partition.iid(LABELS, 3, 0)
    with pytest.raises(InputError, match="5000 labels below 10"):
        split.class_counts(LABELS[:-1], 10)
    with pytest.raises(InputError, match="up to 9"):
        split.class_counts(LABELS, 9)
