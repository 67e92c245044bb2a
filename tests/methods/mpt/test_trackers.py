"""What leaves a vehicle, what it costs, and which demands each method makes."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fedlib.errors import InputError
from fedlib.experiments.mpt_replay import downlink_message
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import MahalanobisNCM, regularise
from fedlib.methods.mpt import capabilities
from fedlib.methods.mpt.baselines.plain import Oracle
from fedlib.methods.mpt.baselines.sdc import SDCTracker
from fedlib.methods.mpt.trackers import METHODS, TrackerOptions, entry
from fedlib.methods.mpt.tracking import CosineNCM, Outcome, Round, Vehicle, readout

CLASSES, DIM, RARE = 6, 8, 4
OPTIONS = TrackerOptions()
TRIANGLE = DIM * (DIM + 1) // 2
VEHICLE_METHODS = [name for name in METHODS if name not in ("oracle", "no_departure")]


class Fleet:
    """Four vehicles over two rounds; vehicle 0 holds most of class 4 and leaves after the first."""

    def __init__(self, random, rare=2, drift=lambda z: z):
        self.z, self.y, self.drift = [], [], drift
        centres = 3 * random(1, CLASSES, DIM)
        for vehicle in range(4):
            y = torch.arange(CLASSES).repeat_interleave(7 + vehicle)
            few = 40 if vehicle == 0 else (rare if vehicle == 2 else 0)
            y = torch.cat([y[y != RARE], torch.full((few,), RARE)])
            self.y.append(y)
            self.z.append((centres[y] + 0.7 * random(20 + vehicle, len(y), DIM)).float())

    def vehicles(self, *, staying, moved=False):
        found = []
        for vehicle in range(1 if staying else 0, 4):
            z = self.drift(self.z[vehicle]) if moved else self.z[vehicle]
            moments = ClassMoments(CLASSES, DIM, leave_out=(RARE,) if staying else ())
            moments.update(z, self.y[vehicle])
            found.append(Vehicle(vehicle, self.y[vehicle], z, moments, self.z[vehicle], self.z[vehicle]))
        return found

    def server(self, number, vehicles):
        head = torch.zeros(CLASSES, DIM), torch.zeros(CLASSES)
        return Round(number, RARE, [vehicle.moments for vehicle in vehicles], head)

    def run(self, name, options=OPTIONS):
        """Return tracker, messages and outcome of the round after the departure."""
        tracker = entry(name).make(options)
        if isinstance(tracker, Oracle):
            tracker.prototype = torch.zeros(DIM, dtype=torch.float64)
        leaving = self.vehicles(staying=True)
        staying = self.server(1, leaving)
        answers = [tracker.uplink(vehicle, tracker.downlink(staying), {}) for vehicle in leaving]
        tracker.departure(self.server(1, self.vehicles(staying=False)), staying, answers)
        kept = [tracker.keep(vehicle) for vehicle in leaving]
        now = self.vehicles(staying=True, moved=True)
        server = self.server(2, now)
        received = tracker.downlink(server)
        sent = [tracker.uplink(vehicle, received, own) for vehicle, own in zip(now, kept, strict=True)]
        messages = [tracker.message(vehicle, own) for vehicle, own in zip(now, sent, strict=True)]
        return tracker, messages, tracker.follow(server, sent)

    def rare_mean(self):
        return torch.cat([z[y == RARE] for z, y in zip(self.z, self.y)]).double().mean(0)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name.startswith(("mpt", "lite")) or name == "ncm"]
)
def test_no_tensor_of_single_samples_leaves_a_vehicle(random, name):
    """Schema: counts, means, one packed scatter, one number; and nothing whose size follows the samples."""
    allowed = {"class_ids": (CLASSES,), "count": (CLASSES,), "mean": (CLASSES, DIM), "scatter": (TRIANGLE,)}
    _, messages, _ = Fleet(random).run(name)
    for message, vehicle in zip(messages, Fleet(random).vehicles(staying=True), strict=True):
        held = int((vehicle.moments.count > 0).sum())
        for key, tensor in message.items():
            if key == "own/energy":
                assert tensor.shape == ()
            elif key == "own/squares":
                assert tensor.shape == (DIM,)
            else:
                assert tensor.shape == tuple(held if size == CLASSES else size for size in allowed[key])
            assert tensor.dtype in (torch.float32, torch.int32)
    sends_covariance = METHODS[name].make(OPTIONS).sends_scatter
    assert ("scatter" in messages[0]) == sends_covariance == name.startswith("mpt") * (name != "mpt_lite")


def test_the_scatter_that_is_sent_leaves_the_rare_class_out(random):
    fleet = Fleet(random)
    _, messages, _ = fleet.run("mpt")
    loud = Fleet(random)
    for z, y in zip(loud.z, loud.y):
        z[y == RARE] *= 50
    _, others, _ = loud.run("mpt")
    assert_close(messages[1]["scatter"], others[1]["scatter"])
    assert not torch.allclose(messages[1]["mean"], others[1]["mean"])


# What the messages hold beyond the formulas of section 12: class ids, and SDC's exponent and bandwidth
EXTRA = {"sdc_federated": 3}


@pytest.mark.parametrize("name", VEHICLE_METHODS)
def test_messages_have_the_floats_of_the_method_page_and_the_class_ids(random, name):
    fleet = Fleet(random)
    tracker, messages, _ = fleet.run(name)
    for message, vehicle in zip(messages, fleet.vehicles(staying=True), strict=True):
        held = int((vehicle.moments.count > 0).sum())
        samples = int(vehicle.moments.count[vehicle.moments.pooled].sum())
        measured = sum(tensor.numel() for tensor in message.values())
        ids = 0 if name.startswith(("fedavg", "head")) else held
        assert measured - tracker.floats_up(held, DIM, samples) == ids + EXTRA.get(name, 0)


@pytest.mark.parametrize("name", VEHICLE_METHODS)
def test_the_server_sends_the_floats_of_the_method_page(random, name):
    """Prototypes or a linear head; what vehicles need before they answer is not counted twice."""
    fleet = Fleet(random)
    tracker, _, _ = fleet.run(name)
    server = fleet.server(2, fleet.vehicles(staying=True, moved=True))
    measured = sum(tensor.numel() for tensor in downlink_message(tracker, server).values())
    extra = 1 if name == "sdc_federated" else 0  # its bandwidth
    assert measured == tracker.floats_down(CLASSES, DIM) + extra


def test_floats_of_the_default_network_are_those_of_the_method_page():
    """B = 94,538, C = C_k = 10, d = 128: lite +1,291, MPT +9,546, CCVR +83,850."""
    counts = {name: entry(name).make(OPTIONS).floats_up(10, 128, 100) for name in ("mpt_lite", "mpt", "ccvr")}
    assert counts == {"mpt_lite": 1291, "mpt": 9546, "ccvr": 83850}


def test_capabilities_are_those_of_the_method_page():
    expected = {  # drift, heterogeneous, no samples, no training
        "fedavg": ("no", False, True, True),
        "ccvr": ("no", True, True, False),
        "icarl": ("partial", False, False, True),
        "icarl_distil": ("partial", False, False, False),
        "sdc": ("yes", False, False, True),
        "sdc_federated": ("yes", True, True, True),
        "ldc": ("yes", False, False, False),
        "ldc_ridge": ("yes", True, True, True),
        "frozen": ("no", True, True, True),
        "ncm": ("no", True, True, True),
        "mpt_lite": ("yes", True, True, True),
        "mpt": ("yes", True, True, True),
    }
    for row in capabilities.table(list(expected)):
        found = (row.follows_drift, row.aggregates, row.per_sample_free, row.training_free)
        assert found == expected[row.method], row.method
    keeps = {row.method: row.keeps_model for row in capabilities.table(["sdc", "ldc", "mpt", "icarl"])}
    assert keeps == {"sdc": True, "ldc": True, "mpt": False, "icarl": False}


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].make(OPTIONS).native != "head"])
def test_every_prototype_method_works_when_no_rare_sample_remains(random, name):
    _, _, outcome = Fleet(random, rare=0, drift=lambda z: z + 1).run(name)
    if name == "no_departure":
        assert torch.isnan(outcome.prototype).all()
    else:
        assert torch.isfinite(outcome.prototype).all()


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("mpt", True),
        ("mpt_lite", True),
        ("sdc", True),
        ("sdc_federated", True),
        ("frozen", False),
        ("ncm", False),
    ],
)
def test_who_follows_a_drift_without_any_rare_sample(random, name, follows):
    move = 2 * random(7, DIM).float()
    fleet = Fleet(random, rare=0, drift=lambda z: z + move)
    _, _, outcome = fleet.run(name)
    gap = float((outcome.prototype - fleet.rare_mean() - move.double()).norm())
    assert (gap < 1e-4) == follows


@pytest.mark.parametrize("name", ["mpt", "mpt_lite", "ncm", "ccvr", "sdc_federated", "ldc_ridge"])
def test_statistics_add_up_however_samples_are_spread_over_vehicles(random, name):
    """Heterogeneous federations: moving samples between the vehicles that stay changes nothing."""
    drift = lambda z: z + 0.3 * torch.sin(z)  # noqa: E731
    fleet, other = Fleet(random, drift=drift), Fleet(random, drift=drift)
    z, y = torch.cat(other.z[1:]), torch.cat(other.y[1:])
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    other.z[1:], other.y[1:] = (list(part[order].split([20, 50, len(z) - 70])) for part in (z, y))
    (_, _, one), (_, _, two) = fleet.run(name), other.run(name)
    if name == "ccvr":
        assert_close(one.head[0], two.head[0], atol=1e-3, rtol=1e-3)
    else:
        assert_close(one.prototype, two.prototype, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["mpt", "mpt_lite", "ncm", "frozen", "icarl", "sdc", "sdc_federated", "ldc_ridge"]
)
def test_numbering_the_vehicles_in_another_way_changes_no_prototype(random, name):
    """What a method makes of given features does not depend on who is called vehicle 1 and who 3. (Training does:
    see the test of trainings.) LDC and CCVR draw batches from all vehicles' features in order, so they are out."""
    drift = lambda z: z + 0.3 * torch.sin(z)  # noqa: E731
    fleet, other = Fleet(random, drift=drift), Fleet(random, drift=drift)
    other.z[1:], other.y[1:] = [[part[place] for place in (3, 1, 2)] for part in (other.z, other.y)]
    (_, sent, one), (_, swapped, two) = fleet.run(name), other.run(name)
    assert [set(message) for message in sent] == [set(message) for message in swapped]
    assert_close(one.prototype, two.prototype, atol=1e-5, rtol=1e-5)


def test_sdc_from_sums_equals_sdc_from_all_pairs(random):
    drift = lambda z: z + 0.3 * torch.sin(z)  # noqa: E731
    (_, _, sums), (_, _, pairs) = (Fleet(random, drift=drift).run(name) for name in ("sdc_federated", "sdc"))
    assert_close(sums.prototype, pairs.prototype, atol=1e-5, rtol=1e-5)  # messages are float32


def test_icarl_keeps_all_rare_samples_and_few_of_each_other_class(random):
    fleet = Fleet(random)
    tracker = entry("icarl").make(TrackerOptions(exemplars=3))
    tracker.rare = RARE
    for vehicle in fleet.vehicles(staying=True):
        kept = vehicle.labels[tracker.keep(vehicle)["exemplars"]]
        assert len(kept) == len(set(tracker.keep(vehicle)["exemplars"].tolist()))
        for label in range(CLASSES):
            held = int((vehicle.labels == label).sum())
            assert int((kept == label).sum()) == (held if label == RARE else min(3, held))


def test_icarl_with_all_samples_as_exemplars_is_the_mean_of_unit_features(random):
    fleet = Fleet(random)
    _, _, outcome = fleet.run("icarl", TrackerOptions(exemplars=10**6))
    z, y = torch.cat(fleet.z[1:]).double(), torch.cat(fleet.y[1:])
    unit = z / z.norm(dim=1, keepdim=True)
    for label in range(CLASSES):
        expected = unit[y == label].mean(0)
        assert_close(
            torch.nn.functional.normalize(outcome.means[label], dim=0),
            torch.nn.functional.normalize(expected, dim=0),
            atol=1e-6,
            rtol=1e-6,
        )


def test_the_cosine_readout_ignores_the_length_of_features(random):
    means, z = random(1, 4, DIM), random(2, 50, DIM).float()
    means[2] = float("nan")
    readout_ = CosineNCM(means)
    assert torch.equal(readout_.predict(z), readout_.predict(9 * z))
    cosines = torch.nn.functional.normalize(z.double(), dim=1) @ torch.nn.functional.normalize(means, dim=1).T
    assert torch.equal(readout_.predict(z), cosines.nan_to_num(-9).argmax(1))


def test_readouts_put_the_prototype_among_the_class_means(random):
    fleet = Fleet(random)
    _, _, outcome = fleet.run("mpt")
    server = fleet.server(2, fleet.vehicles(staying=True))
    at_prototype = outcome.prototype[None].float()
    for kind in ("mahalanobis", "euclidean", "cosine"):
        assert readout(kind, outcome, server, at_prototype).tolist() == [RARE]
    assert readout("head", outcome, server, at_prototype).tolist() == [0]  # a zero head: lowest class


def test_a_method_cannot_follow_a_departure_that_it_did_not_see(random):
    fleet = Fleet(random)
    server = fleet.server(2, fleet.vehicles(staying=True))
    with pytest.raises(InputError, match="did not see"):
        entry("mpt").make(OPTIONS).follow(server, [])
    with pytest.raises(InputError, match="method"):
        entry("mtp")


def test_variances_of_vehicles_equal_the_diagonal_of_the_covariance(random):
    fleet = Fleet(random)
    _, messages, outcome = fleet.run("lite_diag")
    assert "scatter" not in messages[0]
    server = fleet.server(2, fleet.vehicles(staying=True, moved=True))
    assert_close(outcome.variances, server.covariance.diag(), rtol=1e-5, atol=1e-6)  # sent as float32
    z = torch.cat(fleet.z)
    expected = MahalanobisNCM(
        server.with_prototype(outcome.prototype), regularise(outcome.variances.diag(), server.rho)
    )
    assert torch.equal(readout("diagonal", outcome, server, z), expected.predict(z))
    with pytest.raises(InputError, match="diagonal"):
        readout("diagonal", Outcome(prototype=outcome.prototype), server, z)


def test_the_median_bandwidth_of_sdc_follows_the_size_of_the_features_and_needs_all_pairs(random):
    small, large = (Fleet(random, drift=lambda z: z + 0.1 * z.roll(1, dims=1)) for _ in range(2))
    large.z = [10 * z for z in large.z]
    _, _, one = small.run("sdc_median")
    _, _, ten = large.run("sdc_median")
    assert_close(ten.prototype, 10 * one.prototype, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(one.prototype, small.run("frozen")[2].prototype)
    with pytest.raises(InputError, match="median"):
        SDCTracker(None, federated=True)
