"""The affine weights and the complement have the values and invariances that the method page states."""

from __future__ import annotations

import pytest
import torch

from fedlib.errors import InputError
from fedlib.methods.mpt.decomposition import complement, decompose, ridge_of
from fedlib.methods.mpt.residual import measured_residual

P = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
RARE = torch.tensor([1.0, 0.5, 3.0], dtype=torch.float64)


def test_golden_m1_weights_and_residual_with_ridge(close):
    found = decompose(P, RARE, 0.1875)
    assert found.ridge == pytest.approx(0.5)
    close(found.weights, [0.27272727, 0.47474747, 0.25252525], 1e-7)
    close(found.residual, [0.05050505, -0.00505051, 3.0], 1e-7)


def test_golden_m2_limits_of_the_ridge(close):
    small, large = decompose(P, RARE, 0.0), decompose(P, RARE, 1e12)
    close(small.weights, [0.25, 0.5, 0.25])
    close(small.residual, [0.0, 0.0, 3.0])
    close(large.weights, [1 / 3] * 3)
    close(large.residual, [1 / 3, -1 / 6, 3.0])


def test_golden_m7_ridge_is_relative_to_the_mean_eigenvalue_of_the_span():
    assert ridge_of(P, 1.0) == pytest.approx(5.3333333 / 2, abs=1e-6)


def test_weights_sum_to_one_and_solve_the_constrained_problem(close, random):
    prototypes, p = random(1, 12, 5), random(2, 12)
    found = decompose(prototypes, p, 0.03)
    assert float(found.weights.sum()) == pytest.approx(1.0, abs=1e-12)
    # the bordered system (3.2) of the uncentred problem has the same solution
    gram = prototypes.T @ prototypes + found.ridge * torch.eye(5, dtype=torch.float64)
    border = torch.ones(5, 1, dtype=torch.float64)
    system = torch.cat([torch.cat([gram, border], 1), torch.cat([border.T, torch.zeros(1, 1)], 1)])
    right = torch.cat([prototypes.T @ p, torch.ones(1)])
    close(found.weights, torch.linalg.solve(system, right)[:5], 1e-9)


def test_translation_rotation_permutation_and_scale(close, random, rotation):
    prototypes, p, shift, q = random(1, 8, 5), random(2, 8), random(3, 8), rotation(4, 8)
    base = decompose(prototypes, p, 0.02)
    moved = decompose(prototypes + shift[:, None], p + shift, 0.02)
    close(moved.weights, base.weights)
    close(moved.residual, base.residual)
    turned = decompose(q @ prototypes, q @ p, 0.02)
    close(turned.weights, base.weights)
    close(turned.residual, q @ base.residual)
    order = torch.tensor([3, 0, 4, 1, 2])
    close(decompose(prototypes[:, order], p, 0.02).weights, base.weights[order])
    scaled = decompose(7 * prototypes, 7 * p, 0.02)  # lambda scales with the square
    close(scaled.weights, base.weights)
    close(scaled.residual, 7 * base.residual)


def test_a_prototype_in_the_affine_span_is_exact_under_any_affine_drift(close, random):
    prototypes = random(1, 8, 5)
    weights = torch.softmax(random(2, 5), 0)
    found = decompose(prototypes, prototypes @ weights, 0.0)
    close(found.residual, torch.zeros(8))
    drift, shift = random(3, 8, 8), random(4, 8)
    after = drift @ prototypes + shift[:, None]
    close(after @ found.weights, drift @ (prototypes @ weights) + shift, 1e-8)


def test_more_classes_than_dimensions_give_the_minimum_norm_weights(close, random):
    prototypes, p = random(1, 3, 9), random(2, 3)
    found = decompose(prototypes, p, 0.0)
    close(found.residual, torch.zeros(3), 1e-9)
    centred = prototypes - prototypes.mean(1, keepdim=True)
    minimum = torch.linalg.lstsq(centred, (p - prototypes.mean(1))[:, None], driver="gelsd").solution[:, 0]
    close(found.weights - 1 / 9, minimum, 1e-8)


def test_weights_are_bounded_by_the_ridge(random):
    prototypes, p = random(1, 8, 5), 10 * random(2, 8)
    found = decompose(prototypes, p, 0.5)
    centred = prototypes - prototypes.mean(1, keepdim=True)
    bound = (centred.T @ (p - prototypes.mean(1))).norm() / found.ridge
    assert (found.weights - 1 / 5).norm() <= bound


def test_the_complement_makes_the_residual_and_is_a_symmetric_contraction(close, random):
    prototypes, p = random(1, 8, 5), random(2, 8)
    close(complement(prototypes, p - prototypes.mean(1), 0.05), decompose(prototypes, p, 0.05).residual)
    c = complement(prototypes, torch.eye(8, dtype=torch.float64), 0.05)
    close(c, c.T)
    values = torch.linalg.eigvalsh((c + c.T) / 2)
    assert values.min() > 0
    assert values.max() <= 1 + 1e-12


def test_without_ridge_the_complement_removes_the_span_and_equals_the_hard_projector(close, random):
    prototypes, v = random(1, 8, 5), random(2, 8)
    centred = prototypes - prototypes.mean(1, keepdim=True)
    close(complement(prototypes, centred, 0.0), torch.zeros(8, 5), 1e-9)
    close(complement(prototypes, v, 0.0), complement(prototypes, v, 0.0, "hard"), 1e-9)
    twice = complement(prototypes, complement(prototypes, v, 0.3, "hard"), 0.3, "hard")
    close(twice, complement(prototypes, v, 0.3, "hard"), 1e-9)


def test_one_class_gives_weight_one_and_no_complement(close, random):
    only, p = random(1, 4, 1), random(2, 4)
    found = decompose(only, p, 0.01)
    close(found.weights, [1.0])
    close(found.residual, p - only[:, 0])
    close(complement(only, p, 0.01), p)


def test_equal_prototypes_do_not_divide_by_zero(close):
    same = torch.ones(4, 3, dtype=torch.float64)
    close(decompose(same, torch.zeros(4, dtype=torch.float64), 0.01).weights, [1 / 3] * 3)


def test_an_unchanged_mean_gives_an_unchanged_residual_with_the_soft_complement(close, random):
    prototypes, p = random(1, 8, 5), random(2, 8)
    for lambda_rel in (0.0, 0.01, 1.0):
        close(measured_residual(prototypes, p, lambda_rel), decompose(prototypes, p, lambda_rel).residual)
    # with a ridge the hard complement drops the in-span bias, so it is another functional
    hard = measured_residual(prototypes, p, 1.0, "hard")
    assert (hard - decompose(prototypes, p, 1.0).residual).norm() > 0.01


@pytest.mark.parametrize(
    "call",
    [
        lambda: decompose(P, RARE[:2], 0.01),
        lambda: decompose(P, RARE, -1.0),
        lambda: decompose(P, RARE, float("nan")),
        lambda: decompose(P[:, :0], RARE, 0.01),
        lambda: decompose(P, torch.tensor([float("nan"), 0.0, 0.0]), 0.01),
        lambda: complement(P, RARE, 0.01, "sharp"),
        lambda: measured_residual(P, RARE[:2], 0.01),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError):
        call()


def test_weights_fitted_in_mahalanobis_distance_are_those_of_whitened_prototypes(close, random, spd):
    basis, p, sigma = random(1, 9, 4), random(2, 9), spd(3, 9)
    whitened = torch.linalg.inv(torch.linalg.cholesky(sigma))
    expected = decompose(whitened @ basis, whitened @ p, 0.01).weights
    found = decompose(basis, p, 0.01, metric=sigma)
    close(found.weights, expected)
    close(found.weights.sum(), 1.0)
    close(found.residual, p - basis @ expected)  # in the features' own units
    close(decompose(basis, p, 0.01, metric=3 * torch.eye(9)).weights, decompose(basis, p, 0.01).weights)


def test_weights_fitted_in_mahalanobis_distance_do_not_depend_on_the_units_of_the_features(
    close, random, spd
):
    basis, p, sigma, units = random(1, 9, 4), random(2, 9), spd(3, 9), torch.diag(10 ** random(4, 9))
    found = decompose(basis, p, 0.01, metric=sigma)
    changed = decompose(units @ basis, units @ p, 0.01, metric=units @ sigma @ units)
    close(changed.weights, found.weights, 1e-7)
    assert (
        decompose(units @ basis, units @ p, 0.01).weights - decompose(basis, p, 0.01).weights
    ).norm() > 1e-3


def test_a_metric_that_is_not_positive_definite_is_refused(random):
    with pytest.raises(InputError, match="metric"):
        decompose(random(1, 9, 4), random(2, 9), 0.01, metric=torch.zeros(9, 9))
