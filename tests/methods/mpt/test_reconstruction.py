"""The reconstructed prototype: exact where it must be, blind to shift and scale, careful with few samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedlib.errors import InputError
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise
from fedlib.methods.mpt import lite
from fedlib.methods.mpt.decomposition import complement
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import depart, reconstruct
from fedlib.methods.mpt.reliability import by_count, effective_dimension, precision, shrinkage

RARE, CLASSES, DIM = 2, 6, 10
FULL, LITE = MPTOptions(), MPTOptions(weight="js_euclid")


class World:
    """Features of some vehicles: vehicle 0 holds most of the rare class and leaves."""

    def __init__(self, random, spread=1.0, few=3):
        centres = 3 * random(1, CLASSES, DIM)
        self.parts = []
        for vehicle in range(4):
            labels = torch.arange(CLASSES).repeat_interleave(8 + vehicle)
            rare = 60 if vehicle == 0 else (few if vehicle == 1 else 0)
            labels = torch.cat([labels[labels != RARE], torch.full((rare,), RARE)])
            noise = random(10 + vehicle, len(labels), DIM) * torch.linspace(0.3, 2, DIM)
            self.parts.append((centres[labels] + spread * noise, labels))

    def moments(self, map_features=lambda z: z, *, without=(), leave_out=(RARE,)):
        found = []
        for vehicle, (z, y) in enumerate(self.parts):
            if vehicle not in without:
                own = ClassMoments(CLASSES, DIM, leave_out=leave_out)
                own.update(map_features(z), y)
                found.append(own)
        return found

    def rare_mean(self, map_features=lambda z: z):
        z, y = (torch.cat(part) for part in zip(*self.parts))
        return map_features(z)[y == RARE].mean(0)

    def energy(self, map_features=lambda z: z, kind="comp_trace"):
        stay = self.moments(map_features, without=(0,))
        merged = ClassMoments.merge(stay)
        basis = (
            prototypes(merged)[[c for c in range(CLASSES) if c != RARE]].T
            if lite.in_complement(kind)
            else None
        )
        energies = [
            lite.client_energy(own, map_features(z), y, basis, 0.01)
            for own, (z, y) in zip(stay, self.parts[1:], strict=True)
        ]
        return lite.merged_energy(energies, stay, basis, 0.01)


@pytest.fixture
def world(random):
    return World(random)


def stored(world, options=FULL, *, small=False, map_features=lambda z: z):
    merged = ClassMoments.merge(world.moments(map_features, without=(0,)))
    extra = (
        {"energy": world.energy(map_features, options.lite_scalar)}
        if small
        else {"covariance": merged.covariance()}
    )
    return depart(RARE, prototypes(merged), world.rare_mean(map_features), options, **extra)


def rebuilt(world, record, options=FULL, *, small=False, map_features=lambda z: z, **changes):
    merged = ClassMoments.merge(world.moments(map_features, without=(0,)))
    extra = (
        {"energy": world.energy(map_features, options.lite_scalar)}
        if small
        else {"covariance": merged.covariance()}
    )
    n = changes.pop("n", int(merged.count[RARE]))
    return reconstruct(record, prototypes(merged), n, options, **(extra | changes))


@pytest.mark.parametrize("kind", ["ot", "zca", "chol", "pca", "scalar", "none"])
def test_a_frozen_backbone_keeps_the_prototype_exactly_although_a_vehicle_left(close, world, kind):
    options = MPTOptions(transport=kind, weight="fixed", alpha=0.0)
    record = stored(world, options)
    for _ in range(5):  # five fake rounds
        close(rebuilt(world, record, options).prototype, world.rare_mean())


@pytest.mark.parametrize("weight", ["js", "js_euclid", "count", "count_deff", "fixed"])
def test_a_frozen_backbone_keeps_it_for_any_weight_if_the_measurement_agrees(close, world, weight):
    options = MPTOptions(weight=weight, alpha=0.7)
    record = stored(world, options)
    found = rebuilt(world, record, options, mean=world.rare_mean())
    close(found.prototype, world.rare_mean())


def test_statistics_that_kept_the_leaving_vehicle_would_drift_without_any_training(world):
    """Negative: the population of the decomposition must be the one of all later rounds."""
    everyone = ClassMoments.merge(world.moments())
    wrong = depart(RARE, prototypes(everyone), world.rare_mean(), FULL, covariance=everyone.covariance())
    found = rebuilt(world, wrong, replace(FULL, weight="fixed"))
    assert (found.prototype - world.rare_mean()).norm() > 0.01


@pytest.mark.parametrize("small", [False, True])
def test_a_translation_of_all_features_moves_the_prototype_by_itself(close, world, random, small):
    options, shift = LITE if small else FULL, random(5, DIM)
    record = stored(world, options, small=small)
    moved = rebuilt(world, record, options, small=small, map_features=lambda z: z + shift)
    still = rebuilt(world, record, options, small=small)
    close(moved.prototype, still.prototype + shift)
    assert moved.alpha == pytest.approx(still.alpha)


@pytest.mark.parametrize(
    ("small", "change", "follows"),
    [
        (False, {}, True),
        (False, {"transport": "zca"}, True),
        (False, {"transport": "none"}, False),
        (True, {"lite_scalar": "comp_trace"}, True),
        (True, {"lite_scalar": "trace"}, True),
        (True, {"lite_scalar": "spread"}, True),
        (True, {"lite_scalar": "none"}, False),
    ],
)
def test_a_common_scale_is_followed_by_all_but_the_static_residual(world, small, change, follows):
    options = replace(LITE if small else FULL, **change)
    record = stored(world, options, small=small)
    still = rebuilt(world, record, options, small=small)
    moved = rebuilt(world, record, options, small=small, map_features=lambda z: 7 * z)
    error = float((moved.prototype - 7 * still.prototype).norm())
    assert (error < 1e-8) == follows


def test_shift_and_scale_leave_predictions_unchanged_end_to_end(random):
    world = World(random, spread=4)  # classes overlap, so that predictions can change
    shift, test = random(5, DIM), torch.cat([z for z, _ in world.parts])
    for small, options, follows in (
        (False, FULL, True),
        (True, LITE, True),
        (True, replace(LITE, lite_scalar="trace"), True),
        (False, replace(FULL, transport="none", weight="fixed"), False),
    ):
        record = stored(world, options, small=small)

        def predict(map_features, record=record, options=options, small=small):
            merged = ClassMoments.merge(world.moments(map_features, without=(0,)))
            means = prototypes(merged)
            means[RARE] = rebuilt(world, record, options, small=small, map_features=map_features).prototype
            if small:
                return EuclideanNCM(means).predict(map_features(test))
            return MahalanobisNCM(means, regularise(merged.covariance(), 0.01)).predict(map_features(test))

        before = predict(lambda z: z)
        assert torch.equal(predict(lambda z: z + 50 * shift), before)
        assert torch.equal(predict(lambda z: 7 * z), before) == follows


def test_symmetric_positive_drift_is_followed_exactly_by_optimal_transport(close, world, spd):
    drift = spd(3, DIM)
    options = MPTOptions(rho=0.0, lambda_rel=0.0, weight="fixed")
    record = stored(world, options)
    found = rebuilt(world, record, options, map_features=lambda z: z @ drift)
    close(found.prototype, drift @ world.rare_mean(), 1e-7)
    worse = rebuilt(world, stored(world, replace(options, transport="zca")), replace(options, transport="zca"),
                    map_features=lambda z: z @ drift)  # fmt: skip
    assert (worse.prototype - drift @ world.rare_mean()).norm() > 1e-3


@pytest.mark.parametrize("small", [False, True])
def test_without_rare_samples_the_measurement_is_never_touched(close, world, small):
    options = LITE if small else FULL
    record = stored(world, options, small=small)
    nan = torch.full((DIM,), float("nan"), dtype=torch.float64)
    found = rebuilt(world, record, options, small=small, n=0, mean=nan)
    assert found.alpha == 0.0
    assert found.measured is None
    assert torch.isfinite(found.prototype).all()
    close(found.prototype, found.in_span + found.predicted)


def test_the_weight_of_the_measurement_grows_with_the_number_of_samples(world):
    drifted = lambda z: z + 0.5 * torch.sin(z)  # noqa: E731
    for weight in ("js", "js_euclid", "count", "count_deff"):
        options = MPTOptions(weight=weight)
        record = stored(world, options)
        m = world.rare_mean(drifted) + 0.3
        alphas = [
            rebuilt(world, record, options, map_features=drifted, mean=m, n=n).alpha
            for n in (1, 2, 5, 20, 500, 10**6)
        ]
        assert alphas == sorted(alphas)
        assert alphas[-1] > 0.99


def test_golden_m5_shrinkage():
    assert shrinkage(8.0, 2.0)[0] == 0.75
    assert shrinkage(2.0, 8.0)[0] == 0.0
    assert shrinkage(0.0, 0.0, dim=10)[0] == 0.0


def test_smoothing_averages_the_bias_estimate_over_rounds():
    alpha, excess = shrinkage(8.0, 2.0, ema=0.5)
    assert (alpha, excess) == (0.75, 6.0)
    alpha, excess = shrinkage(2.0, 2.0, ema=0.5, excess=excess)
    assert excess == 3.0
    assert alpha == pytest.approx(3 / 5)
    assert shrinkage(2.0, 2.0, excess=6.0)[0] == 0.0  # without smoothing the last rounds do not count


def test_smoothed_weights_go_from_round_to_round(world):
    options = MPTOptions(ema=0.7)
    record = stored(world, options)
    drifted = lambda z: z + 0.5 * torch.sin(z)  # noqa: E731
    first = rebuilt(world, record, options, map_features=drifted)
    second = rebuilt(world, record, options, excess=first.excess)
    assert second.excess == pytest.approx(0.7 * first.excess + 0.3 * max(second.g2 - second.noise, 0))


def test_noise_is_the_expected_squared_error_of_the_measurement(random, spd):
    """tr(St^-1 C Sigma C) / n by simulation, in both metrics."""
    basis, sigma, n = random(1, DIM, 4), spd(2, DIM), 5
    regular = regularise(sigma, 0.01)
    draws = random(3, 4000, n, DIM) @ torch.linalg.cholesky(sigma).T
    errors = complement(basis, draws.mean(1).T, 0.01)  # (d, draws)
    mahalanobis = (errors * torch.linalg.solve(regular, errors)).sum(0).mean()
    noise = effective_dimension(basis, sigma, precision(regular), 0.01)
    assert noise / n == pytest.approx(float(mahalanobis), rel=0.05)
    euclid = errors.square().sum(0).mean()
    assert effective_dimension(basis, sigma, None, 0.01) / n == pytest.approx(float(euclid), rel=0.05)


def test_lite_energy_of_vehicles_equals_the_trace_over_all_samples(world):
    merged = ClassMoments.merge(world.moments(without=(0,)))
    sigma = merged.covariance()
    basis = prototypes(merged)[[c for c in range(CLASSES) if c != RARE]].T
    inside = complement(basis, complement(basis, sigma, 0.01).T, 0.01).trace()
    assert world.energy() == pytest.approx(float(inside), rel=1e-10)
    assert world.energy(kind="trace") == pytest.approx(float(sigma.trace()), rel=1e-10)


def test_lite_scalars_follow_scale_and_regression_follows_the_measurement(world, random):
    then = lite.Scale(4.0, 2.0)
    e0 = random(1, DIM)
    for kind, expected in (("comp_trace", 3.0), ("trace", 3.0), ("spread", 3.0), ("none", 1.0)):
        assert lite.scalar(kind, then, lite.Scale(36.0, 6.0), e0) == pytest.approx(expected)
    assert lite.scalar("regress", then, then, e0, 2 * e0, n=10**9) == pytest.approx(2.0)
    assert lite.scalar("regress", then, then, e0, 1.001 * e0, n=1) == 1.0  # within its noise
    assert lite.scalar("regress", then, then, e0) == 1.0  # no sample


def test_a_remaining_class_without_samples_leads_to_a_refit_on_the_others(close, world):
    record = stored(world, replace(FULL, weight="fixed"))
    merged = ClassMoments.merge(world.moments(without=(0,)))
    means = prototypes(merged)
    means[4] = float("nan")
    found = reconstruct(record, means, 0, FULL, covariance=merged.covariance())
    assert found.refitted
    close(found.prototype, world.rare_mean())  # the backbone did not change, so it is still exact
    means[[0, 1, 3]] = float("nan")
    with pytest.raises(InputError, match="at least two"):
        reconstruct(record, means, 0, FULL, covariance=merged.covariance())


def test_several_departures_are_several_records(close, world, random):
    """A class that departs later is no support for the first one any more."""
    second = 4
    first_record = stored(world, replace(FULL, weight="fixed"))
    merged = ClassMoments.merge(world.moments(without=(0, 2), leave_out=(RARE, second)))
    means = prototypes(merged)
    all_second = torch.cat([z[y == second] for z, y in world.parts]).mean(0)
    record = depart(second, means, all_second, FULL, covariance=merged.covariance(), also_departed=(RARE,))
    assert RARE not in record.classes
    assert second not in record.classes
    options = replace(FULL, weight="fixed")
    again = reconstruct(record, means, 0, options, covariance=merged.covariance(), departed=(RARE, second))
    close(again.prototype, all_second)
    first = reconstruct(
        first_record, means, 0, options, covariance=merged.covariance(), departed=(RARE, second)
    )
    assert first.refitted
    assert torch.isfinite(first.prototype).all()


def test_the_extensions_are_what_they_say(close, world):
    drifted = lambda z: z + 0.5 * torch.sin(z)  # noqa: E731
    record = stored(world)
    plain = rebuilt(world, record, map_features=drifted)
    whole = rebuilt(world, record, replace(FULL, extension="full_space"), map_features=drifted)
    m = ClassMoments.merge(world.moments(drifted, without=(0,))).mean[RARE]
    close(whole.prototype, whole.alpha * m + (1 - whole.alpha) * (whole.in_span + whole.predicted))
    many = rebuilt(world, record, replace(FULL, extension="full_space"), map_features=drifted, n=10**9)
    close(many.prototype, m, 1e-6)  # can correct a wrong in-span part, which MPT cannot
    difference = rebuilt(world, record, replace(FULL, extension="difference"), map_features=drifted)
    close(difference.measured, plain.measured - record.measured + record.decomposition.residual)
    unchanged = rebuilt(world, record, replace(FULL, extension="difference"))
    close(unchanged.prototype, world.rare_mean())  # exact although only three samples are left


def test_weights_in_mahalanobis_distance_are_exact_on_a_frozen_backbone_and_need_a_covariance(close, world):
    options = replace(FULL, metric="mahalanobis", weight="fixed")
    record = stored(world, options)
    assert (record.decomposition.weights - stored(world).decomposition.weights).norm() > 1e-3
    close(rebuilt(world, record, options).prototype, world.rare_mean())
    means = prototypes(ClassMoments.merge(world.moments(without=(0,))))
    means[4] = float("nan")
    found = reconstruct(record, means, 0, options, covariance=record.origin.covariance)
    assert found.refitted
    assert found.in_span.shape == (DIM,)
    with pytest.raises(InputError, match="metric is 'mahalanobis'"):
        stored(world, replace(LITE, metric="mahalanobis"), small=True)


def test_counts_and_constants():
    assert by_count(20, 20) == 0.5
    assert by_count(0, 20) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"lambda_rel": -1.0}, {"rho": float("nan")}, {"transport": "best"}, {"complement": "sharp"},
        {"weight": "much"}, {"ema": 1.0}, {"kappa": 0.0}, {"alpha": 1.5}, {"lite_scalar": "sum"},
        {"extension": "all"}, {"metric": "cosine"},
    ],
)  # fmt: skip
def test_bad_options_are_refused(change):
    with pytest.raises(InputError):
        MPTOptions(**change)


def test_bad_departures_are_refused(world):
    merged = ClassMoments.merge(world.moments(without=(0,)))
    means, p = prototypes(merged), world.rare_mean()
    with pytest.raises(InputError, match="either"):
        depart(RARE, means, p, FULL)
    with pytest.raises(InputError, match="rare_class"):
        depart(99, means, p, FULL, energy=1.0)
    with pytest.raises(InputError, match="trace"):  # all features dead
        depart(RARE, means, p, FULL, covariance=torch.zeros(DIM, DIM))
    with pytest.raises(InputError, match="no class"):
        depart(RARE, torch.full_like(means, float("nan")), p, FULL, energy=1.0)
    with pytest.raises(InputError, match="covariance of the round"):
        reconstruct(stored(world), means, 0, FULL)
