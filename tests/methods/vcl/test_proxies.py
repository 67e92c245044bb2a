"""Variational Proxy-NCA: golden values, invariances and the scaling of the KL."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import unpack_tril
from fedlib.methods.vcl.client import train_client_vi
from fedlib.methods.vcl.inputs import FeatureData
from fedlib.methods.vcl.presets import preset
from fedlib.methods.vcl.proxies import (
    VariationalProxies,
    draw_proxies,
    gaussian_kl,
    kl_factor,
    proxy_nca_nll,
    variational_loss,
)


def random_case(
    classes: int = 3, d: int = 5, batch: int = 8, scale: float = 0.3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = seeds.torch_generator(0, "case")
    z = functional.normalize(torch.randn(batch, d, generator=g, dtype=torch.float64), dim=1)
    y = torch.randint(classes, (batch,), generator=g)
    mean = torch.randn(classes, d, generator=g, dtype=torch.float64)
    tril = scale * torch.randn(classes, d, d, generator=g, dtype=torch.float64).tril(-1)
    diagonal = scale * (0.5 + torch.rand(classes, d, generator=g, dtype=torch.float64))
    return z, y, mean, tril + torch.diag_embed(diagonal)


def test_g1_kl_to_the_prior() -> None:
    mean = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    tril = torch.tensor([[[1.0, 0.0], [0.5, 2.0]]], dtype=torch.float64)
    assert gaussian_kl(mean, tril, 2.0).item() == pytest.approx(0.4743971806, abs=1e-9)


def test_g2_log_likelihood_ignores_the_length_of_proxies() -> None:
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    mu = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
    logs = [-proxy_nca_nll(z, mu, torch.tensor([c]), 0.5).item() for c in (0, 1)]
    assert logs == pytest.approx([-0.1269280, -2.1269280], abs=1e-7)


def test_kl_is_that_of_torch_distributions_and_zero_at_the_prior() -> None:
    _, _, mean, tril = random_case(d=6)
    prior = MultivariateNormal(torch.zeros(6).double(), scale_tril=0.7 * torch.eye(6).double())
    expected = kl_divergence(MultivariateNormal(mean, scale_tril=tril), prior)
    torch.testing.assert_close(gaussian_kl(mean, tril, 0.7), expected)
    at_prior = gaussian_kl(torch.zeros(1, 6).double(), 0.7 * torch.eye(6).double()[None], 0.7)
    assert abs(at_prior.item()) < 1e-12


def test_gradients_of_the_kl_are_the_closed_ones() -> None:
    _, _, mean, tril = random_case(classes=1)
    mean, tril = mean.requires_grad_(), tril.requires_grad_()
    gaussian_kl(mean, tril, 0.5).sum().backward()
    torch.testing.assert_close(mean.grad, mean.detach() / 0.25)
    inverse = torch.diag_embed(1 / tril.detach().diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(tril.grad, tril.detach() / 0.25 - inverse)


def test_tiny_covariance_gives_the_deterministic_loss() -> None:  # property (a)
    z, y, mean, _ = random_case()
    mu = draw_proxies(mean, 1e-9 * torch.eye(5).double().expand(3, 5, 5), 5, seeds.torch_generator(0))
    logits = z @ functional.normalize(mean, dim=1).T / 0.6
    torch.testing.assert_close(
        proxy_nca_nll(z, mu, y, 0.6), functional.cross_entropy(logits, y), atol=1e-6, rtol=0
    )


def test_likelihood_term_is_invariant_to_the_scale_of_each_class() -> None:  # property (b)
    z, y, mean, tril = random_case()
    a = torch.tensor([0.3, 2.0, 7.0], dtype=torch.float64)
    losses = [
        proxy_nca_nll(z, draw_proxies(m, l, 5, seeds.torch_generator(1)), y, 0.6)
        for m, l in ((mean, tril), (a[:, None] * mean, a[:, None, None] * tril))
    ]
    torch.testing.assert_close(*losses)


def test_rotation_changes_neither_kl_nor_expected_loss() -> None:  # property (c)
    z, y, mean, tril = random_case(scale=0.15)
    g = seeds.torch_generator(3)
    q, _ = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=torch.float64))
    turned = torch.linalg.cholesky(q @ tril @ tril.mT @ q.T)
    torch.testing.assert_close(gaussian_kl(mean @ q.T, turned, 0.4), gaussian_kl(mean, tril, 0.4))
    before = proxy_nca_nll(z, draw_proxies(mean, tril, 4000, g), y, 0.6)
    after = proxy_nca_nll(z @ q.T, draw_proxies(mean @ q.T, turned, 4000, g), y, 0.6)
    assert abs(before - after).item() < 0.01


def test_loss_is_minus_the_evidence_bound_of_a_sample() -> None:
    """(3.3) with the factor 1/N: N J = -sum log p + KL on the whole data."""
    z, y, mean, tril = random_case()
    proxies = VariationalProxies(mean, tril)
    loss = variational_loss(
        z, y, proxies, seeds.torch_generator(5), samples=4, tau=0.6, kl_weight=1 / len(y), prior_scale=0.4
    )
    mu = draw_proxies(mean, tril, 4, seeds.torch_generator(5))
    nll = torch.stack([proxy_nca_nll(z, mu[s : s + 1], y, 0.6) for s in range(4)]).mean()
    torch.testing.assert_close(len(y) * loss, len(y) * nll + gaussian_kl(mean, tril, 0.4).sum())


def test_proxies_start_as_asked_and_stay_positive_definite() -> None:
    d, scale = 16, 0.1 / 4
    proxies = VariationalProxies.initial(3, d, scale, seeds.torch_generator(0))
    assert proxies.mean.abs().max() <= 1 / math.sqrt(d)
    torch.testing.assert_close(proxies.scale_tril(), scale * torch.eye(d).expand(3, d, d))
    with torch.no_grad():
        proxies.raw.fill_(-1e4)
        proxies.lower.fill_(3.0)
    tril = proxies.scale_tril()
    assert (tril.diagonal(dim1=-2, dim2=-1) >= 1e-4).all()
    assert (tril.triu(1) == 0).all()
    mean, packed = proxies.export(1)
    assert (mean.shape, packed.shape) == ((d,), (d * (d + 1) // 2,))
    assert torch.equal(unpack_tril(packed), tril[1])


def test_initial_scale_below_the_floor_is_refused() -> None:
    with pytest.raises(InputError, match="initial scale"):
        VariationalProxies.initial(2, 4, 1e-4, seeds.torch_generator(0))


def test_classical_loss_leaves_the_own_class_out() -> None:
    z, y, mean, _ = random_case()
    s = z @ functional.normalize(mean, dim=1).T / 0.6
    value = proxy_nca_nll(z, mean[None], y, 0.6, exclude_positive=True)
    by_hand = [-s[i, c] + torch.cat([s[i, :c], s[i, c + 1 :]]).logsumexp(0) for i, c in enumerate(y.tolist())]
    torch.testing.assert_close(value, torch.stack(by_hand).mean())
    with pytest.raises(InputError, match="exclude_positive"):
        proxy_nca_nll(z, mean[None, :1], torch.zeros_like(y), 0.6, exclude_positive=True)


def test_fixed_proxies_take_part_in_the_sum_and_get_no_gradient() -> None:
    z, y, mean, tril = random_case()
    new = VariationalProxies(mean[2:], tril[2:])
    loss = variational_loss(
        z,
        y,
        new,
        seeds.torch_generator(0),
        samples=2,
        tau=0.6,
        kl_weight=0.0,
        prior_scale=1.0,
        others=(mean[:2], tril[:2]),
    )
    alone = variational_loss(
        z, y * 0, new, seeds.torch_generator(0), samples=2, tau=0.6, kl_weight=0.0, prior_scale=1.0
    )
    assert alone.item() == pytest.approx(0, abs=1e-12)
    assert loss > 0.1


def fit(kl_scale: str) -> tuple[float, float, float]:
    """Accuracy of the nearest proxy, mean diagonal of L and mean length of m after training on fixed features."""
    g = seeds.torch_generator(0, "blobs")
    d, y = 16, np.arange(600) % 4
    centres = functional.normalize(torch.randn(4, d, generator=g), dim=1)
    z = functional.normalize(centres[y] + 0.15 * torch.randn(600, d, generator=g), dim=1)
    options = preset(
        "paper",
        shared_space="frozen",
        epochs=40,
        lr=1e-3,
        proxy_lr_factor=30.0,
        kl_scale=kl_scale,
        batch_size=128,
    )
    client = train_client_vi(FeatureData(z, y), nn.Identity(), options, client=0, seed=0, num_classes=4)
    means = torch.stack([client.proxies[c].mean for c in range(4)])
    trils = torch.stack([client.proxies[c].tril for c in range(4)])
    said = (z @ functional.normalize(means, dim=1).T).argmax(1).numpy()
    return (
        float((said == y).mean()),
        float(trils.diagonal(dim1=-2, dim2=-1).mean()),
        float(means.norm(dim=1).mean()),
    )


@pytest.mark.parametrize("kl_scale", ["1/num_batches", "1"])
def test_any_other_scale_of_the_kl_collapses_to_the_prior(kl_scale: str) -> None:
    good, collapsed = fit("1/N"), fit(kl_scale)
    assert good[0] > 0.95
    assert good[2] > 0.3
    assert collapsed[1] == pytest.approx(1 / 4, rel=0.1)  # sigma0 = 1/sqrt(16)
    assert collapsed[2] < 0.1


def test_kl_factors() -> None:
    assert [kl_factor(s, 1000, 128) for s in ("1/N", "1/num_batches", "1")] == [1 / 1000, 1 / 8, 1.0]


def test_a_kl_scale_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InputError, match="kl_scale is '1/n'; allowed: 1/N, 1/num_batches, 1"):
        kl_factor("1/n", 1000, 128)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="samples are 0"):
        kl_factor("1/N", 0, 128)
