"""Several departures in one run: each class has its record, and no departure looks like drift to another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlib.errors import InputError
from fedlib.experiments import mpt, settings
from fedlib.experiments.mpt_departures import Fleet, Server, share_out
from fedlib.experiments.mpt_scenario import bench_of
from fedlib.features.moments import ClassMoments
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import depart

CLASSES, DIM, GONE = 6, 10, {2: 3, 4: 6}  # label and last round of the classes of vehicle 0 and 1


def config(**changes):
    small = {"rounds": 5, "num_clients": 5, "remaining_fractions": [0.05]}
    return settings.load("mpt", "smoke", small | changes)


def statistics(random, away, leave_out):
    """Of vehicles whose features never change: vehicle j holds most of the j-th class of ``GONE``."""
    centres, parts = 3 * random(1, CLASSES, DIM), []
    for vehicle in range(5):
        y = torch.arange(CLASSES).repeat_interleave(8 + vehicle)
        y = y[~torch.isin(y, torch.tensor(list(GONE)))]
        for place, label in enumerate(GONE):
            y = torch.cat([y, torch.full((40 if place == vehicle else 2 * (vehicle > 1),), label)])
        z = centres[y] + random(10 + vehicle, len(y), DIM)
        if vehicle not in away:
            own = ClassMoments(CLASSES, DIM, leave_out=leave_out)
            own.update(z, y)
            parts.append(own)
    return ClassMoments.merge(parts)


def test_a_frozen_backbone_keeps_every_prototype_over_two_departures(close, random):
    server = Server(MPTOptions(weight="fixed"), GONE)  # the prediction alone
    present = {
        number: [v for v, last in enumerate(GONE.values()) if last < number] for number in range(1, 10)
    }
    truth = {}
    for number in range(1, 9):
        departed = server.departed(number)
        here = statistics(random, present[number], departed)
        tracked = server.follow(here, departed)
        assert set(tracked) == set(departed) == {label for label, last in GONE.items() if last < number}
        for label, prototype in tracked.items():
            close(prototype, truth[label], 1e-8)
        truth |= {label: here.mean[label] for label, last in GONE.items() if last == number}
        staying = statistics(random, present[number + 1], server.departed(number + 1))
        server.depart(number, here, staying, tracked)
    assert server.records[2].classes == server.records[4].classes == (0, 1, 3, 5)


def test_a_record_that_was_not_written_anew_takes_the_second_departure_for_drift(random):
    """Negative: the first record still has the vehicle that leaves later in its covariance."""
    server = Server(MPTOptions(weight="fixed"), GONE)
    before = statistics(random, [], ())
    server.depart(3, before, statistics(random, [0], (2,)), {})
    old = server.records[2]
    kept = dict(server.records)
    tracked = server.follow(statistics(random, [0], (2,)), (2,))
    server.depart(6, statistics(random, [0], (2,)), statistics(random, [0, 1], (2, 4)), tracked)
    assert server.records[2] is not old
    last = statistics(random, [0, 1], (2, 4))
    server.records = server.records | kept
    assert (server.follow(last, (2, 4))[2] - before.mean[2]).norm() > 0.01


def test_each_leaving_vehicle_dominates_its_class_and_the_rest_is_with_those_that_stay():
    labels = np.repeat(np.arange(4), 100)
    split = share_out(labels, config(), {2: 1, 0: 3}, 0.05, seed=1)
    held = np.array([np.bincount(labels[indices], minlength=4) for indices in split.clients])
    assert held.sum() == 400
    assert held[:, 2].tolist()[:2] == [95, 0]
    assert held[:, 0].tolist()[:2] == [0, 95]
    assert held[2:, 2].sum() == held[2:, 0].sum() == 5


def test_a_class_is_trained_on_until_its_vehicle_leaves_and_never_after():
    bench = bench_of(config())
    train = bench.part("train")
    split = share_out(bench.labels, config(), {8: 1, 3: 3}, 0.05, seed=0)
    fleet = Fleet.of([train.subset(indices) for indices in split.clients], {8: 1, 3: 3})
    assert [fleet.present(number) for number in (1, 2, 3, 4)] == [
        (0, 1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4),
    ]  # fmt: skip
    for number, absent in ((1, ()), (2, (8,)), (3, (8,)), (4, (8, 3))):
        seen = np.concatenate([fleet.data(client, number).labels for client in fleet.present(number)])
        assert {8, 3} - set(seen.tolist()) == set(absent)


def test_two_departures_give_rows_of_both_classes_and_bad_ones_are_refused():
    study = mpt.several_departures(config(), [(8, 2), (3, 3)])
    rows = study.metrics
    assert set(rows["method"]) == {"mpt", "ncm", "frozen", "oracle"}
    first = rows[(rows["rare_class"] == 3) & (rows["metric"] == "rare_f1")]
    assert set(first[first["phase"] == "after"]["round"]) == {4, 5}
    assert not rows.duplicated(["rare_class", "method", "round", "metric"]).any()
    before = first[first["phase"] == "before"].groupby("round")["value"].nunique()
    assert before[1] == 1  # nothing is missing yet
    assert mpt.several_departures(config(), [(8, 2), (3, 3)]).runs[0].reused
    for leaving, text in (
        ([], "leaving"), ([(8, 2), (8, 3)], "leaving"), ([(8, 5)], "last round"), ([(11, 2)], "rare_class"),
        ([(0, 1), (1, 1), (2, 1), (3, 1)], "num_clients"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=text):
            mpt.several_departures(config(), leaving)


def test_the_server_writes_what_the_library_writes(close, random):
    server = Server(MPTOptions(), GONE)
    everyone, staying = statistics(random, [], ()), statistics(random, [0], (2,))
    server.depart(3, everyone, staying, {})
    means = torch.where((staying.count > 0)[:, None], staying.mean, torch.nan)
    expected = depart(2, means, everyone.mean[2], MPTOptions(), covariance=staying.covariance())
    close(server.records[2].decomposition.weights, expected.decomposition.weights)
