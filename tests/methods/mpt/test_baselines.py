"""The baselines do what their papers say, and their federated forms equal the central ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.methods.mpt.baselines import ccvr, icarl, ldc, sdc
from fedlib.methods.mpt.baselines.ccvr import CCVR
from fedlib.methods.mpt.baselines.ldc import LDC

# --- SDC


def test_sdc_golden_shift(close):
    old = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    delta = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    close(sdc.shift(old, old + delta, torch.zeros(2), 1.0), [0.62246, 0.37754], 1e-5)


def test_sdc_of_all_vehicles_equals_that_of_all_features_in_one_place(close, random):
    old, new, p = random(1, 60, 7), random(2, 60, 7), 20 * random(3, 7)
    whole = sdc.shift(old, new, p, 0.4)  # a bandwidth at which unscaled weights would all be zero
    assert torch.exp(-(old - p).square().sum(1) / (2 * 0.4**2)).sum() == 0
    pieces = [
        sdc.partial_shift(a, b, p, 0.4) for a, b in zip(old.split([5, 0, 25, 30]), new.split([5, 0, 25, 30]))
    ]
    close(sdc.combine(pieces), whole)
    close(sdc.combine(pieces[::-1]), whole)


def test_sdc_limits(close, random):
    old, p, move = random(1, 30, 5), random(2, 5), random(3, 5)
    close(sdc.shift(old, old + move, p, 0.3), move)  # all move alike
    new = old + random(4, 30, 5)
    close(sdc.shift(old, new, p, 1e6), (new - old).mean(0), 1e-6)  # a flat kernel: mean drift
    close(sdc.shift(old, old, p, 0.3), torch.zeros(5))  # identity backbone
    close(sdc.combine([sdc.partial_shift(old[:0], old[:0], p, 0.3)]), torch.zeros(5))  # nobody has a sample


def test_sdc_bandwidth_equals_the_authors_for_unit_features(random):
    assert sdc.bandwidth(1.0, 0.3) == 0.3


# --- LDC


def test_ldc_ridge_recovers_a_linear_drift_and_adds_up_over_vehicles(close, random):
    old, drift = random(1, 50, 6), random(2, 6, 6)
    new = old @ drift.T
    close(ldc.fit_ridge(*ldc.sums(old, new), 0.0), drift, 1e-8)
    parts = [ldc.sums(a, b) for a, b in zip(old.split([10, 0, 40]), new.split([10, 0, 40]))]
    s_no, s_oo = (sum(part) for part in zip(*parts))
    close(ldc.fit_ridge(s_no, s_oo), ldc.fit_ridge(*ldc.sums(old, new)))


def test_ldc_ridge_shrinks_to_the_identity(close, random):
    old = random(1, 4, 6)  # fewer samples than features
    close(ldc.fit_ridge(*ldc.sums(old, old)), torch.eye(6), 1e-9)
    with pytest.raises(InputError, match="singular"):
        ldc.fit_ridge(*ldc.sums(torch.zeros(4, 6), torch.zeros(4, 6)), 0.0)


def test_ldc_by_adam_learns_the_map_with_the_steps_of_torch(random):
    old, drift = random(1, 300, 5).float(), torch.eye(5) + 0.2 * random(2, 5, 5).float()
    new = old @ drift.T
    options = LDC(epochs=200, lr=1e-2)
    found, steps = ldc.fit_sgd(old, new, options, 0, 1)
    assert steps == 200 * 3
    assert (found.float() - drift).norm() / drift.norm() < 0.02
    # the same arithmetic as torch.optim.Adam
    short = LDC(epochs=3, batch_size=100, start="identity")
    ours, _ = ldc.fit_sgd(old, new, short, 0, 1)
    layer = nn.Linear(5, 5, bias=False)
    layer.weight.data = torch.eye(5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=short.lr)
    order = seeds.torch_generator(0, "ldc", "batches", 1)
    for _ in range(3):
        for rows in torch.randperm(300, generator=order).split(100):
            optimizer.zero_grad()
            nn.functional.mse_loss(layer(old[rows]), new[rows]).backward()
            optimizer.step()
    assert_close(ours.float(), layer.weight.data, atol=1e-5, rtol=1e-5)


# --- CCVR


def test_ccvr_merge_is_the_unbiased_covariance_of_the_pooled_class(close, random):
    z, y = 100 + random(1, 40, 4), torch.arange(40) % 3
    y[0] = 3  # one sample of one class
    pieces = [ccvr.class_gaussians(a, b, 5) for a, b in zip(z.split([1, 2, 17, 20]), y.split([1, 2, 17, 20]))]
    merged, central = ccvr.merge(pieces), ccvr.class_gaussians(z, y, 5)
    close(merged.mean, central.mean)
    close(merged.covariance, central.covariance)
    close(merged.covariance[1], torch.cov(z[y == 1].T, correction=1))
    assert merged.count.tolist() == [13, 13, 13, 1, 0]


def test_ccvr_with_biased_vehicle_covariances_would_be_wrong(random):
    """Negative: the formula needs unbiased covariances; small vehicles show the difference."""
    z, y = random(1, 40, 4), torch.zeros(40, dtype=torch.int64)
    biased = []
    for part in z.split(4):
        own = ccvr.class_gaussians(part, y[:4], 1)
        biased.append(ccvr.ClassGaussians(own.count, own.mean, own.covariance * 3 / 4))
    error = ccvr.merge(biased).covariance[0] - torch.cov(z.T)
    assert error.norm() > 0.05


def test_ccvr_samples_follow_the_gaussians_and_few_samples_take_the_pooled_covariance(close, random, spd):
    sigma = spd(1, 3)
    gaussians = ccvr.ClassGaussians(
        torch.tensor([50, 1, 0]), random(2, 3, 3), torch.stack([sigma, torch.zeros(3, 3), sigma])
    )
    close(ccvr.pooled_covariance(gaussians), sigma)
    z, y = ccvr.virtual_features(gaussians, 20000, seeds.torch_generator(0, "test"))
    assert y.unique().tolist() == [0, 1]
    assert_close(torch.cov(z[y == 0].T).double(), sigma, atol=0.05, rtol=0.05)
    assert_close(torch.cov(z[y == 1].T).double(), sigma, atol=0.05, rtol=0.05)
    assert_close(z[y == 0].mean(0).double(), gaussians.mean[0], atol=0.03, rtol=0.03)


def test_ccvr_head_approaches_linear_discriminants(spd):
    """Equal covariances and many samples: the direction between two classes is Sigma^-1 (mu_1 - mu_0)."""
    sigma, means = spd(1, 4), torch.tensor([[0.0, 0, 0, 0], [1.0, -1, 0.5, 0]]).double()
    gaussians = ccvr.ClassGaussians(torch.tensor([9, 9]), means, torch.stack([sigma, sigma]))
    z, y = ccvr.virtual_features(gaussians, 4000, seeds.torch_generator(0, "test"))
    weight, _, steps = ccvr.retrain(torch.zeros(2, 4), torch.zeros(2), z, y, CCVR(epochs=20, lr=0.05), 0, 1)
    assert steps == 20 * 125
    direction = torch.linalg.solve(sigma, means[1] - means[0])
    cosine = torch.cosine_similarity((weight[1] - weight[0]).double(), direction, dim=0)
    assert cosine > 0.95


def test_ccvr_takes_the_steps_of_torch_and_leaves_the_global_head_alone(random):
    z, y = random(1, 100, 4).float(), torch.arange(100) % 3
    weight, bias = random(2, 3, 4).float(), random(3, 3).float()
    kept = weight.clone(), bias.clone()
    new_weight, new_bias, _ = ccvr.retrain(weight, bias, z, y, CCVR(epochs=2), 0, 5)
    assert torch.equal(weight, kept[0])
    assert torch.equal(bias, kept[1])
    layer = nn.Linear(4, 3)
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
    order = seeds.torch_generator(0, "ccvr", "batches", 5)
    for _ in range(2):
        for rows in torch.randperm(100, generator=order).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(z[rows]), y[rows]).backward()
            optimizer.step()
    assert_close(new_weight, layer.weight.data, atol=1e-5, rtol=1e-5)
    assert_close(new_bias, layer.bias.data, atol=1e-5, rtol=1e-5)


# --- iCaRL


def test_herding_chooses_prefixes_that_approach_the_mean_and_ignores_scale(random):
    z = random(1, 30, 6) + 1
    full = icarl.herding(z, 30)
    assert sorted(full.tolist()) == list(range(30))
    assert icarl.herding(z, 8).tolist() == full[:8].tolist()
    assert icarl.herding(5 * z, 8).tolist() == full[:8].tolist()
    unit = icarl.unit(z)
    gaps = [(unit[full[:m]].mean(0) - unit.mean(0)).norm() for m in (1, 5, 30)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-12  # all samples: the class mean
    random_gap = (unit[:5].mean(0) - unit.mean(0)).norm()
    assert gaps[1] < random_gap
    assert icarl.herding(z[:0], 4).tolist() == []
    with pytest.raises(InputError):
        icarl.herding(z, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sdc.shift(torch.ones(2, 3), torch.ones(2, 2), torch.ones(3), 1.0),
        lambda: sdc.shift(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2), 1.0),
        lambda: sdc.shift(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3), 0.0),
        lambda: sdc.combine([]),
        lambda: sdc.bandwidth(0.0, 0.3),
        lambda: ldc.fit_sgd(torch.ones(0, 3), torch.ones(0, 3), LDC(), 0, 1),
        lambda: ldc.fit_ridge(torch.eye(3), torch.eye(3), -1.0),
        lambda: LDC(start="zero"),
        lambda: ccvr.merge([]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError):
        call()
