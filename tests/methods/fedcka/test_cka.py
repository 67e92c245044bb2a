"""Linear CKA: its invariances, its two forms and its guards."""

import math

import pytest
import torch

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.cka import centred_gram, linear_cka, minibatch_cka, stacked_cka, unbiased_hsic


def draw(n: int, p: int, stream: int = 0) -> torch.Tensor:
    return torch.randn(n, p, generator=seeds.torch_generator(stream, "cka-test", n, p), dtype=torch.float64)


X = draw(60, 12)
Y = X @ draw(12, 7) + draw(60, 7, 1)


def orthogonal(p: int) -> torch.Tensor:
    return torch.linalg.qr(draw(p, p, 2)).Q


@pytest.mark.parametrize("hsic", ["biased", "unbiased"])
def test_equal_up_to_scale_rotation_and_shift_is_one(hsic: str) -> None:
    assert linear_cka(X, X, hsic=hsic) == pytest.approx(1, abs=1e-12)
    moved = -3.5 * X @ orthogonal(12) + draw(1, 12, 3)
    assert linear_cka(X, moved, hsic=hsic) == pytest.approx(1, abs=1e-10)
    assert linear_cka(X, X[:, torch.randperm(12, generator=seeds.torch_generator(0, "p"))], hsic=hsic) == (
        pytest.approx(1, abs=1e-12)
    )


def test_general_invertible_maps_change_it() -> None:
    stretch = torch.ones(12, dtype=torch.float64)
    stretch[-1] = 100
    assert linear_cka(X, X * stretch) < 0.9


def test_symmetric_and_in_range() -> None:
    assert linear_cka(X, Y) == pytest.approx(linear_cka(Y, X), abs=1e-12)
    assert 0 < linear_cka(X, Y) < 1


def test_value_by_definition() -> None:
    n = len(X)
    h = torch.eye(n, dtype=torch.float64) - 1 / n
    k, other = h @ X @ X.T @ h, h @ Y @ Y.T @ h
    wanted = float((k @ other).trace() / ((k @ k).trace() * (other @ other).trace()).sqrt())
    assert linear_cka(X, Y, form="gram") == pytest.approx(wanted, abs=1e-12)
    assert linear_cka(X, Y, form="feature") == pytest.approx(wanted, abs=1e-12)


def test_column_chunks_do_not_change_the_gram_matrix() -> None:
    assert torch.allclose(centred_gram(X, chunk=5), centred_gram(X), atol=1e-10)


def test_row_order_matters_only_if_it_differs() -> None:
    order = torch.randperm(60, generator=seeds.torch_generator(0, "rows"))
    assert linear_cka(X[order], Y[order]) == pytest.approx(linear_cka(X, Y), abs=1e-12)
    assert linear_cka(X[order], Y) < linear_cka(X, Y) - 0.1


@pytest.mark.parametrize(("n", "p"), [(10, 2000), (200, 100)])
def test_the_biased_estimate_of_unrelated_features_is_one_over_one_plus_n_over_p(n: int, p: int) -> None:
    assert linear_cka(draw(n, p, 5), draw(n, p, 6)) == pytest.approx(1 / (1 + n / p), abs=0.02)


def test_the_unbiased_estimate_of_unrelated_features_is_zero() -> None:
    values = []
    for stream in range(40):
        xy, xx, yy = unbiased_hsic(draw(10, 50, 100 + stream), draw(10, 50, 200 + stream))
        values.append(xy / (xx * yy) ** 0.5)
    assert abs(sum(values) / len(values)) < 0.1
    assert linear_cka(draw(10, 50, 5), draw(10, 50, 6)) > 0.7, "the biased one is far from 0 here"


def test_unbiased_hsic_by_its_formula() -> None:
    n = 9
    x, y = draw(n, 4), draw(n, 3)
    k, other = ((m - m.mean(0)) @ (m - m.mean(0)).T for m in (x, y))
    k, other = (m - torch.diag(m.diagonal()) for m in (k, other))
    one = torch.ones(n, dtype=torch.float64)
    wanted = (
        (k @ other).trace()
        + (one @ k @ one) * (one @ other @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (one @ k @ other @ one)
    ) / (n * (n - 3))
    assert unbiased_hsic(x, y)[0] == pytest.approx(float(wanted), rel=1e-10)
    raw = [m @ m.T - torch.diag((m @ m.T).diagonal()) for m in (x, y)]
    uncentred = (
        (raw[0] @ raw[1]).trace()
        + (one @ raw[0] @ one) * (one @ raw[1] @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (one @ raw[0] @ raw[1] @ one)
    ) / (n * (n - 3))
    assert float(uncentred) == pytest.approx(float(wanted), rel=1e-8), "the estimate does not see the mean"


def test_minibatches_of_the_same_features_give_one_and_short_ones_are_left_out() -> None:
    assert minibatch_cka(
        [(X[:20], 2 * X[:20]), (X[20:40], 2 * X[20:40]), (X[:3], Y[:3, :3])]
    ) == pytest.approx(1)
    assert math.isnan(minibatch_cka([(X[:3], X[:3])]))


def test_guards() -> None:
    flat = torch.full((60, 4), 7.0)
    assert linear_cka(flat, torch.zeros(60, 3)) == 1, "nothing says that they differ"
    assert linear_cka(flat, Y) == 0
    assert math.isnan(linear_cka(X[:1], Y[:1]))
    assert math.isnan(linear_cka(X[:3], Y[:3], hsic="unbiased"))
    with pytest.raises(FloatingPointError, match="not finite"):
        linear_cka(torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1))
    with pytest.raises(InputError, match="same number of rows"):
        linear_cka(X, Y[:5])
    with pytest.raises(InputError, match="hsic"):
        linear_cka(X, Y, hsic="empirical")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [3, 40])  # the Gram form and the feature form
def test_infinite_activations_are_refused_in_one_voice(rows):
    wrong = torch.arange(4.0 * rows).reshape(rows, 4)
    wrong[0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match="not finite"):
        linear_cka(wrong, torch.rand(rows, 4, generator=torch.Generator().manual_seed(0)))


def test_matrices_that_are_too_large_are_refused() -> None:
    with pytest.raises(InputError, match="4096"):
        linear_cka(draw(4200, 3), draw(4200, 2), hsic="unbiased")
    with pytest.raises(InputError, match="batch 1 has 4200 rows; allowed: at most 4096"):
        minibatch_cka([(X, X), (draw(4200, 3), draw(4200, 2))])


def test_batches_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InputError, match="same number of rows"):
        minibatch_cka([(X, X[:5])])
    with pytest.raises(FloatingPointError, match="not finite"):
        minibatch_cka([(X, X * math.inf)])


def test_large_means_in_float32_do_not_cancel_digits() -> None:
    shifted = (X + 1e4).float()
    assert linear_cka(shifted, X) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("n", "p"), [(60, 12), (9, 40)])  # the feature form and the Gram form
def test_many_pairs_at_once_score_as_one_by_one(n: int, p: int) -> None:
    x = draw(n, 3 * p).reshape(n, 3, p).transpose(0, 1).float()
    y = 0.1 * x[:, :, : p - 1] + draw(n, 3 * (p - 1), 1).reshape(n, 3, p - 1).transpose(0, 1).float() + 20
    wanted = [linear_cka(a, b) for a, b in zip(x, y)]
    assert stacked_cka(x.clone(), y.clone()) == pytest.approx(wanted, abs=1e-6)
    assert stacked_cka(x.clone(), 3 * x) == pytest.approx([1, 1, 1], abs=1e-6)


def test_pairs_that_float32_cannot_hold_score_as_in_float64() -> None:
    x, y = X.float(), Y.float()
    flat = torch.full_like(y, 7.3)
    pairs = [(x * 1e-25, y), (x * 1e25, y), (x + 1e5, y), (x, y + 3e6), (x, flat), (flat, flat)]
    for a, b in pairs:
        assert stacked_cka(a[None].clone(), b[None].clone()) == pytest.approx([linear_cka(a, b)], abs=1e-5)
    assert stacked_cka(x[None, :1], y[None, :1]) == pytest.approx([math.nan], nan_ok=True)
    for wrong in (math.nan, math.inf):
        broken = y.clone()
        broken[3, 2] = wrong
        with pytest.raises(FloatingPointError, match="not finite"):
            stacked_cka(x[None].clone(), broken[None])


@pytest.mark.parametrize("stream", range(4))
def test_the_unbiased_estimate_of_a_hundred_unrelated_rows_is_near_zero(stream: int) -> None:
    xy, xx, yy = unbiased_hsic(draw(100, 100, 2 * stream), draw(100, 100, 2 * stream + 1))
    assert abs(xy) / (xx * yy) ** 0.5 < 0.06


def test_rows_that_share_no_channel_stay_in_range() -> None:
    rows = torch.eye(6).repeat(5, 1)
    assert 0 <= linear_cka(rows[:, :3], rows[:, 3:]) <= 1
    assert linear_cka(rows[:, :3], torch.zeros(30, 2)) == 0
