"""Class Gaussians from features: moments, Normal-inverse-Wishart, diagonal variational inference; messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian, Mixture
from fedlib.methods.vcl import messages
from fedlib.methods.vcl.diagnostics import COLUMNS, diagnose, directions, two_sample_accuracy
from fedlib.methods.vcl.feature_vi import fit_feature_vi
from fedlib.methods.vcl.moments import fit_moments
from fedlib.methods.vcl.niw import fit_niw


def features(counts: tuple[int, ...] = (40, 60), d: int = 6) -> tuple[Tensor, Tensor]:
    g = seeds.torch_generator(0, "features")
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = torch.randn(len(counts), d, generator=g, dtype=torch.float64)
    return centres[y] + 0.3 * torch.randn(len(y), d, generator=g, dtype=torch.float64), y


def plain(**options: Any) -> dict[int, ClassGaussian]:
    z, y = features()
    return fit_moments(z, y, shrink=0.0, ridge=0.0, **options)


def test_class_moments_are_those_of_numpy() -> None:
    z, y = features()
    for label, q in plain().items():
        own = z[y == label].numpy()
        np.testing.assert_allclose(q.mean, own.mean(0))
        np.testing.assert_allclose(q.cov() - 1e-6 * np.eye(6), np.cov(own.T))


def test_total_scatter_contains_the_scatter_between_classes() -> None:
    z, _ = features()
    total, within = plain(covariance="tied_total"), plain(covariance="tied_within")
    np.testing.assert_allclose(total[0].cov() - 1e-6 * np.eye(6), np.cov(z.numpy().T))
    assert total[0].tril is total[1].tril
    pooled = (39 * plain()[0].cov() + 59 * plain()[1].cov()) / 98
    torch.testing.assert_close(within[1].cov(), pooled)
    assert total[0].cov().trace() > 2 * within[0].cov().trace()


def test_shrinkage_and_ridge_are_applied_in_this_order() -> None:
    z, y = features()
    raw = plain()[0].cov() - 1e-6 * torch.eye(6)
    q = fit_moments(z, y, shrink=0.1, ridge=1e-3)[0]
    expected = 0.9 * raw + (0.1 * raw.diagonal().mean() + 1e-3 + 1e-6) * torch.eye(6)
    torch.testing.assert_close(q.cov(), expected)


def test_a_class_with_one_sample_gets_the_pooled_or_the_unit_covariance() -> None:
    z, y = features((30, 1))
    pooled = fit_moments(z, y, shrink=0.0, ridge=0.0)[1]
    torch.testing.assert_close(pooled.cov(), fit_moments(z, y, shrink=0.0, ridge=0.0)[0].cov())
    unit = fit_moments(z, y, shrink=0.0, ridge=0.0, single="identity")[1]
    torch.testing.assert_close(unit.cov(), (1 + 1e-6) * torch.eye(6).double())
    lonely = fit_moments(z[:1], y[:1], shrink=0.0, ridge=0.0)[0]
    torch.testing.assert_close(lonely.cov(), (1 / 6 + 1e-6) * torch.eye(6).double())


@pytest.mark.parametrize("covariance", ["class", "tied_total", "tied_within"])
def test_one_sample_in_all_is_defined(covariance: Any) -> None:
    z, y = features((1,))
    assert fit_moments(z, y, covariance=covariance)[0].count == 1


def test_class_that_was_never_drawn_is_a_component_at_zero_with_its_true_count() -> None:
    z, y = features()
    fitted = fit_moments(z[y == 0], y[y == 0], covariance="tied_total", counts=torch.tensor([40, 5]))
    assert fitted[1].mean.abs().max() == 0
    assert fitted[1].count == 5


@pytest.mark.parametrize("fit", [fit_moments, fit_niw, fit_feature_vi])
def test_features_that_are_not_finite_are_refused(fit: Callable[..., Any]) -> None:
    z, y = features()
    z[3, 2] = torch.nan
    with pytest.raises(InputError, match="sample 3"):
        fit(z, y)
    with pytest.raises(InputError, match="at least one sample"):
        fit(z[:0], y[:0])


def test_niw_is_the_sample_moments_for_many_samples_and_works_for_few() -> None:
    z, y = features((20_000,), d=4)
    q = fit_niw(z, y)[0]
    torch.testing.assert_close(q.mean, z.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(q.cov(), torch.cov(z.T), atol=1e-3, rtol=0)
    few, labels = features((3, 1), d=30)
    fitted = fit_niw(few, labels)
    assert all(torch.linalg.cond(q.cov()) < 1e3 for q in fitted.values())


def test_niw_covariance_is_the_posterior_mean() -> None:
    z, y = features((7,), d=3)
    n, d, mean = 7, 3, z.mean(0)
    s2 = ((z - mean).square().sum() / 6 / 3).item()
    scatter = (z - mean).T @ (z - mean)
    psi = (d + 2) * s2 * torch.eye(3) + scatter + 1e-3 * n / (1e-3 + n) * torch.outer(mean, mean)
    torch.testing.assert_close(fit_niw(z, y)[0].cov(), psi / (d + 2 + n - d - 1))


def test_our_feature_vi_finds_the_sample_spread() -> None:
    g = seeds.torch_generator(1)
    y = torch.arange(3).repeat_interleave(torch.tensor([200, 400, 300]))
    z = functional.normalize(
        torch.randn(3, 64, generator=g)[y] + 0.3 * torch.randn(900, 64, generator=g), dim=1
    )
    result = fit_feature_vi(z, y)
    assert result.steps < 2000
    for label, q in result.gaussians.items():
        own = z[y == label].double()
        ratio = q.tril.diagonal() / own.std(0)
        assert (ratio - 1).abs().max() < 0.05
        torch.testing.assert_close(q.mean, own.mean(0), atol=0.01, rtol=0)


def test_the_codes_feature_vi_does_not_converge() -> None:
    g = seeds.torch_generator(2)
    y = torch.arange(2).repeat_interleave(200)
    z = functional.normalize(
        torch.randn(2, 128, generator=g)[y] + 0.5 * torch.randn(400, 128, generator=g), dim=1
    )
    q = fit_feature_vi(z, y, recipe="code", steps=800, lr=1e-3).gaussians[0]
    true = z[:200].std(0).mean()
    assert q.tril.diagonal().mean() > 10 * true
    made = Mixture((q,)).sample(500, g)
    assert functional.cosine_similarity(made, q.mean.float()[None]).mean() < 0.2


def test_feature_vi_of_one_sample_is_finite() -> None:
    z, y = features((30, 1))
    assert fit_feature_vi(z, y).gaussians[1].tril.diagonal().max() < 10


@pytest.mark.parametrize(
    ("form", "numbers"), [("full", 2 * 33_153), ("tied", 2 * 257 + 32_896), ("diagonal", 2 * 513)]
)
def test_numbers_on_the_wire(form: Any, numbers: int) -> None:  # G7: 33,153 floats a class at d = 256
    tril = torch.eye(256)
    own = {c: ClassGaussian(torch.zeros(256), tril, 10) for c in (1, 4)}
    message = messages.pack(own, form)
    assert sum(t.numel() for t in message.values()) == numbers
    back = messages.unpack(message)
    assert sorted(back) == [1, 4]
    assert torch.equal(back[4].tril, tril)
    assert back[4].count == 10


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_rounding_on_the_wire_keeps_the_diagonal_positive(wire: Any) -> None:
    tril = torch.diag(torch.tensor([1e-12, 0.3]))
    sent = messages.pack({0: ClassGaussian(torch.tensor([0.1, 0.2]), tril, 5)}, wire=wire)
    assert sent["0/tril"].element_size() == 2
    back = messages.unpack(sent)[0]
    assert (back.tril.diagonal() > 0).all()
    assert back.tril[1, 1] == pytest.approx(0.3, rel=4e-3)


@pytest.mark.parametrize("name", ["0/mean", "0/tril"])
def test_incomplete_message_is_refused(name: str) -> None:
    message = messages.pack({0: ClassGaussian(torch.zeros(2), torch.eye(2), 5)})
    del message[name]
    with pytest.raises(InputError, match=name):
        messages.unpack(message)


def test_diagnostics_tell_matching_features_from_others() -> None:
    z, y = features((300, 300))
    z = functional.normalize(z, dim=1).float()
    right = {c: Mixture((q,)) for c, q in fit_moments(z, y, shrink=0.0, ridge=0.0).items()}
    wrong = {c: Mixture((ClassGaussian(q.mean(), 2 * torch.eye(6).double(), 5),)) for c, q in right.items()}
    good, bad = diagnose(right, z, y), diagnose(wrong, z, y)
    assert tuple(good.columns) == COLUMNS
    assert ((good.nearest_neighbour - 0.5).abs() < 0.1).all()
    assert (bad.nearest_neighbour > 0.7).all()
    assert ((good.scatter_ratio - 1).abs() < 0.2).all()
    assert (bad.scatter_ratio > 1.5).all()
    assert (bad.cosine_synthetic < good.cosine_synthetic).all()
    torch.testing.assert_close(directions(right).diagonal(), torch.ones(2).double())


def test_two_sample_accuracy_of_far_and_of_few() -> None:
    z = torch.randn(50, 3, generator=seeds.torch_generator(0))
    assert two_sample_accuracy(z, z + 100) == 1.0
    assert np.isnan(two_sample_accuracy(z[:1], z))
