"""Class Gaussians and mixtures: packing, Cholesky, moments and draws; the ledger of messages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import (
    ClassGaussian,
    Mixture,
    cholesky,
    matched,
    pack_tril,
    sample_mixtures,
    unpack_tril,
)
from fedlib.federation.ledger import SERVER, Ledger


def gaussian(d: int, count: int, seed: int = 0, scale: float = 1.0) -> ClassGaussian:
    g = seeds.torch_generator(seed, "test")
    a = torch.randn(d, d, generator=g, dtype=torch.float64) * scale
    return ClassGaussian(
        torch.randn(d, generator=g, dtype=torch.float64), cholesky(a @ a.T / d + 0.1 * torch.eye(d)), count
    )


def test_packed_triangle_comes_back_bit_for_bit() -> None:
    tril = torch.randn(7, 7, generator=seeds.torch_generator(0)).tril()
    packed = pack_tril(tril)
    assert packed.shape == (28,)
    assert torch.equal(unpack_tril(packed), tril)


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_packed_triangle_of_wrong_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="packed triangle"):
        unpack_tril(torch.zeros(shape))


def test_cholesky_of_a_singular_matrix_needs_only_jitter() -> None:
    v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    sigma = torch.outer(v, v)
    tril = cholesky(sigma)
    assert (tril.diagonal() > 0).all()
    torch.testing.assert_close(tril @ tril.T, sigma, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("sigma", "says"),
    [
        (torch.diag(torch.tensor([1.0, -1.0])), "eigenvalue -1; allowed: positive definite"),
        (torch.tensor([[torch.nan, 0.0], [0.0, 1.0]]), "holds nan; allowed: finite"),
        (torch.tensor([[torch.inf, 0.0], [0.0, 1.0]]), "holds inf; allowed: finite"),
        (torch.zeros(2, 3), "shape"),
    ],
)
def test_a_matrix_that_is_no_covariance_is_refused(sigma: Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says):
        cholesky(sigma)


@pytest.mark.parametrize(
    ("mean", "tril", "count"),
    [
        (torch.zeros(2), torch.eye(3), 1),
        (torch.zeros(2), torch.eye(2), 0),
        (torch.tensor([0.0, torch.nan]), torch.eye(2), 1),
        (torch.zeros(2), torch.diag(torch.tensor([1.0, 0.0])), 1),
    ],
)
def test_values_that_make_no_gaussian_are_refused(mean: Tensor, tril: Tensor, count: int) -> None:
    with pytest.raises(InputError):
        ClassGaussian(mean, tril, count)


def test_mixture_draws_have_the_mean_and_covariance_of_the_formulas() -> None:  # property (d)
    mixture = Mixture((gaussian(4, 100, 1), gaussian(4, 300, 2), gaussian(4, 50, 3)))
    n = 60_000
    z = mixture.sample(n, seeds.torch_generator(0, "draws"), normalise=False).double()
    error = (mixture.cov().diagonal() / n).sqrt()
    assert ((z.mean(0) - mixture.mean()).abs() < 4 * error).all()
    centred = z - mixture.mean()
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / n**0.5
    assert ((products.mean(0) - mixture.cov()).abs() < 4 * error).all()


def test_shares_of_the_components_are_their_shares_of_samples() -> None:  # property (d)
    far = [
        ClassGaussian(torch.tensor([10.0 * k, 1.0]), torch.eye(2) * 1e-3, n) for k, n in enumerate((1, 3, 6))
    ]
    mixture = Mixture(tuple(far))
    assert mixture.weights.tolist() == pytest.approx([0.1, 0.3, 0.6])
    n = 10_000
    z = mixture.sample(n, seeds.torch_generator(1), normalise=False)
    counts = torch.bincount((z[:, 0] / 10).round().long(), minlength=3) / n
    error = (mixture.weights * (1 - mixture.weights) / n).sqrt()
    assert ((counts - mixture.weights).abs() < 4 * error).all()


def test_draws_have_length_one_and_depend_on_the_generator_alone() -> None:  # property (e)
    mixtures = [Mixture((gaussian(5, 3, 1), gaussian(5, 4, 2))), Mixture((gaussian(5, 2, 3),))]
    draws = [sample_mixtures(mixtures, [30, 20], seeds.torch_generator(7)) for _ in range(2)]
    assert torch.equal(*draws)
    torch.testing.assert_close(draws[0].norm(dim=1), torch.ones(50))
    assert not torch.equal(draws[0], sample_mixtures(mixtures, [30, 20], seeds.torch_generator(8)))


def test_batched_and_looped_draws_agree() -> None:
    parts = [Mixture((gaussian(5, 3, k),)) for k in range(3)]
    batched = sample_mixtures(parts, [40, 40, 40], seeds.torch_generator(0))
    looped = sample_mixtures([*parts, parts[0]], [40, 40, 40, 0], seeds.torch_generator(0))
    torch.testing.assert_close(batched, looped)


def test_matched_gaussian_has_the_moments_of_the_mixture() -> None:
    mixture = Mixture((gaussian(3, 10, 1), gaussian(3, 30, 2)))
    one = matched(mixture)
    torch.testing.assert_close(one.mean, mixture.mean())
    torch.testing.assert_close(one.cov(), mixture.cov())
    assert one.count == 40


def test_mixture_of_different_lengths_is_refused() -> None:
    with pytest.raises(InputError, match="lengths"):
        Mixture((gaussian(3, 1), gaussian(4, 1)))
    with pytest.raises(InputError, match="mixture"):
        Mixture(())


def test_ledger_counts_rounds_and_serialised_bytes() -> None:
    ledger = Ledger()
    message = {"mean": torch.zeros(256)}
    ledger.send(SERVER, 0, 1, "recipe", {})
    ledger.send(0, SERVER, 1, "gaussians", message)
    ledger.send(0, SERVER, 1, "gaussians", message)
    ledger.send(1, SERVER, 1, "gaussians", message)
    ledger.send(1, SERVER, 2, "encoder", message)
    assert ledger.uplinks() == {0: 1, 1: 2}
    frame = ledger.frame()
    assert list(frame.columns) == ["round", "sender", "receiver", "direction", "kind", "messages", "bytes"]
    row = frame[(frame.sender == 0) & (frame.kind == "gaussians")].iloc[0]
    assert row.messages == 2
    assert 1024 < row.bytes // 2 < 1024 + 200
    assert row.bytes + 2 * row.bytes // 2 == ledger.total_bytes("up")


def test_a_ledger_with_a_limit_refuses_a_further_uplink() -> None:
    ledger = Ledger(most_uplinks=1)
    for kind in ("gaussians", "encoder"):  # several messages of one round are one uplink
        ledger.send(0, SERVER, 2, kind, {})
    ledger.send(SERVER, 0, 1, "recipe", {})
    ledger.send(1, SERVER, 1, "gaussians", {})
    with pytest.raises(
        InputError, match="client 0 sends 'gaussians' .* round 3, its uplink number 2; allowed: 1"
    ):
        ledger.send(0, SERVER, 3, "gaussians", {})
    assert ledger.uplinks() == {0: 1, 1: 1}
    with pytest.raises(InputError, match="most_uplinks is 0"):
        Ledger(most_uplinks=0)


def test_empty_ledger_has_a_frame_and_bad_messages_are_refused() -> None:
    ledger = Ledger()
    assert len(ledger.frame()) == 0
    assert ledger.uplinks() == {}
    for sender, receiver, round in ((0, 0, 1), (0, SERVER, 0), (-2, SERVER, 1)):
        with pytest.raises(InputError, match="allowed"):
            ledger.send(sender, receiver, round, "x", {})
