"""Class moments, their merges and messages, and nearest-class-mean readouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import models
from fedlib.errors import InputError
from fedlib.features import ncm, symmetric
from fedlib.features.embed import embed
from fedlib.features.finite import all_finite
from fedlib.features.moments import ClassMoments
from fedlib.features.shifted import ShiftedSums

C, D = 5, 4


def samples(seed: int, n: int, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, n)
    z = rng.normal(size=(n, D)) * rng.uniform(0.1, 3, D) + 2 * np.eye(C, D)[y] + offset
    return torch.from_numpy(z), torch.from_numpy(y)


def moments_of(z: torch.Tensor, y: torch.Tensor, **options: Any) -> ClassMoments:
    moments = ClassMoments(C, D, **options)
    moments.update(z, y)
    return moments


def pooled(z: torch.Tensor, y: torch.Tensor, leave_out: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Count, mean and scatter with numpy, all samples in one place."""
    features, labels = z.numpy(), y.numpy()
    mean, scatter = np.zeros((C, D)), np.zeros((D, D))
    for label in np.unique(labels):
        own = features[labels == label]
        mean[label] = own.mean(axis=0)
        if label not in leave_out:
            scatter += (own - mean[label]).T @ (own - mean[label])
    return {"count": np.bincount(labels, minlength=C), "mean": mean, "scatter": scatter}


def assert_same(moments: ClassMoments, expected: dict[str, np.ndarray], tolerance: float = 1e-10) -> None:
    assert moments.scatter is not None
    assert moments.count.tolist() == expected["count"].tolist()
    scale = 1 + np.abs(expected["scatter"]).max()
    assert np.abs(moments.mean.numpy() - expected["mean"]).max() <= tolerance * (
        1 + np.abs(expected["mean"]).max()
    )
    assert np.abs(moments.scatter.numpy() - expected["scatter"]).max() <= tolerance * scale


# --- moments


@given(
    seed=st.integers(0, 1000),
    n=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    leave_out=st.sampled_from([(), (0,), (1, 3)]),
)
@settings(max_examples=80, deadline=None)
def test_streaming_and_merging_equal_pooling(
    seed: int, n: int, cuts: list[int], leave_out: tuple[int, ...]
) -> None:
    z, y = samples(seed, n)
    ends = sorted(min(cut, n) for cut in cuts)
    batches = list(zip(torch.tensor_split(z, ends), torch.tensor_split(y, ends)))
    streamed = ClassMoments(C, D, leave_out=leave_out)
    for batch in batches:
        streamed.update(*batch)
    merged = ClassMoments.merge([moments_of(*batch, leave_out=leave_out) for batch in batches])
    for moments in (streamed, merged):
        assert_same(moments, pooled(z, y, leave_out))
        assert [c for c in range(C) if not moments.pooled[c]] == list(leave_out)


@given(seed=st.integers(0, 1000), order=st.permutations(range(6)))
@settings(max_examples=40, deadline=None)
def test_order_of_clients_does_not_matter(seed: int, order: list[int]) -> None:
    parts = [moments_of(*samples(seed + k, 3 + 4 * k)) for k in range(6)]
    first = ClassMoments.merge(parts)
    other = ClassMoments.merge([parts[k] for k in order])
    assert first.scatter is not None
    assert other.scatter is not None
    assert torch.allclose(first.mean, other.mean, rtol=1e-12, atol=1e-12)
    assert torch.allclose(first.scatter, other.scatter, rtol=1e-12, atol=1e-12)


def test_merge_of_merges_is_the_merge_of_all() -> None:
    parts = [moments_of(*samples(k, 10)) for k in range(4)]
    nested = ClassMoments.merge([ClassMoments.merge(parts[:2]), ClassMoments.merge(parts[2:])])
    whole = ClassMoments.merge(parts)
    assert whole.scatter is not None
    assert_same(nested, {k: getattr(whole, k).numpy() for k in ("count", "mean", "scatter")}, 1e-12)


def test_golden_merge_of_two_clients() -> None:
    # client a: n 2, mean 1, scatter 2; client b: n 3, mean 4, scatter 6
    parts = [
        ClassMoments.from_tensors(
            {
                "class_ids": torch.tensor([0]),
                "count": torch.tensor([n]),
                "mean": torch.tensor([[mu]]),
                "scatter": torch.tensor([w]),
            },
            num_classes=1,
        )
        for n, mu, w in ((2, 1.0, 2.0), (3, 4.0, 6.0))
    ]
    whole = ClassMoments.merge(parts)
    assert whole.scatter is not None
    assert float(whole.mean) == pytest.approx(2.8, abs=1e-12)
    assert float(whole.scatter) == pytest.approx(18.8, abs=1e-12)


def test_large_means_do_not_cancel_the_scatter() -> None:
    z, y = samples(0, 500)
    near, far = moments_of(z, y), moments_of(z + 1e6, y)
    assert near.scatter is not None
    assert far.scatter is not None
    assert torch.allclose(near.scatter, far.scatter, rtol=1e-8, atol=1e-7)


def test_left_out_class_is_counted_but_does_not_spread() -> None:
    z, y = samples(0, 100)
    with_it, without = moments_of(z, y), moments_of(z, y, leave_out=(2,))
    only_others = moments_of(z[y != 2], y[y != 2])
    assert without.count.tolist() == with_it.count.tolist()
    assert torch.equal(without.mean, with_it.mean)
    assert torch.allclose(without.covariance(), only_others.covariance(), rtol=1e-12)
    assert not torch.allclose(without.covariance(), with_it.covariance())


def test_covariance_divides_by_samples_less_live_classes() -> None:
    z = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    moments = ClassMoments(4, 1)
    moments.update(z, torch.tensor([0, 0, 3, 3]))
    assert float(moments.covariance()) == pytest.approx((2 + 8) / (4 - 2))


def test_covariance_needs_more_samples_than_classes() -> None:
    moments = ClassMoments(3, 2)
    moments.update(torch.rand(2, 2), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="2 samples of 2 classes"):
        moments.covariance()
    with pytest.raises(InputError, match="scatter=False"):
        ClassMoments(3, 2, scatter=False).covariance()


def test_bad_batches_are_named() -> None:
    moments = ClassMoments(3, 2)
    with pytest.raises(InputError, match=r"allowed: \(B, 2\)"):
        moments.update(torch.rand(4, 3), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match="integers"):
        moments.update(torch.rand(4, 2), torch.zeros(4))
    with pytest.raises(InputError, match="labels are 0 to 3; allowed: 0 to 2"):
        moments.update(torch.rand(2, 2), torch.tensor([0, 3]))
    with pytest.raises(InputError, match=r"features of sample 1 \(class 2\) are NaN"):
        moments.update(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), torch.tensor([0, 2]))
    assert moments.count.sum() == 0
    with pytest.raises(InputError, match="class to leave out is 3"):
        ClassMoments(3, 2, leave_out=[3])
    with pytest.raises(InputError, match="nothing to merge"):
        ClassMoments.merge([])
    for other in (ClassMoments(3, 3), ClassMoments(3, 2, scatter=False), ClassMoments(3, 2, leave_out=[0])):
        with pytest.raises(InputError, match="parts differ"):
            ClassMoments.merge([moments, other])


# --- messages


def test_message_holds_statistics_only_and_has_the_stated_size() -> None:
    z, y = samples(0, 50)
    message = moments_of(z[y < 3], y[y < 3]).to_tensors()
    shapes = {key: tuple(value.shape) for key, value in message.items()}
    assert shapes == {"class_ids": (3,), "count": (3,), "mean": (3, D), "scatter": (D * (D + 1) // 2,)}
    # C_k (d + 1) + d(d + 1)/2 numbers of 4 bytes, as the specification counts, and the class numbers
    assert sum(value.nbytes for value in message.values()) == 4 * (3 * (D + 1) + D * (D + 1) // 2) + 4 * 3
    assert "scatter" not in moments_of(z, y, scatter=False).to_tensors()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 0), (torch.float32, 1e-6)])
def test_message_comes_back(dtype: torch.dtype, tolerance: float) -> None:
    z, y = samples(3, 40)
    sent = moments_of(z, y, leave_out=(1,))
    received = ClassMoments.from_tensors(sent.to_tensors(dtype), C, leave_out=(1,))
    assert sent.scatter is not None
    assert_same(received, {k: getattr(sent, k).numpy() for k in ("count", "mean", "scatter")}, tolerance)
    assert torch.equal(received.pooled, sent.pooled)


def test_client_without_samples_sends_a_message_that_changes_nothing() -> None:
    empty = ClassMoments.from_tensors(ClassMoments(C, D).to_tensors(), C)
    full = moments_of(*samples(0, 20))
    merged = ClassMoments.merge([empty, full])
    assert full.scatter is not None
    assert_same(merged, {k: getattr(full, k).numpy() for k in ("count", "mean", "scatter")}, 1e-12)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"class_ids": None}, "no class_ids"),
        ({"class_ids": torch.tensor([0, 0, 1, 2, 3])}, "different numbers"),
        ({"class_ids": torch.tensor([0, 1, 2, 3, 5])}, "0 to 4"),
        ({"count": torch.tensor([1, 1, 1, 1, 0])}, "at least 1"),
        ({"count": torch.tensor([1, 1])}, "allowed:"),
        ({"mean": torch.full((C, D), torch.nan)}, "mean of the message holds NaN"),
        ({"scatter": torch.full((D * (D + 1) // 2,), torch.inf)}, "scatter of the message holds NaN"),
        ({"scatter": torch.zeros(4)}, "packed matrix"),
        ({"scatter": torch.zeros(6)}, "scatter is for 3 features"),
    ],
)
def test_malformed_message_is_named(change: dict[str, torch.Tensor | None], named: str) -> None:
    message: dict[str, Any] = {**moments_of(*samples(0, 100)).to_tensors(), **change}
    with pytest.raises(InputError, match=named):
        ClassMoments.from_tensors({key: value for key, value in message.items() if value is not None}, C)


@given(dim=st.integers(1, 12), seed=st.integers(0, 50))
@settings(deadline=None)
def test_packing_loses_nothing(dim: int, seed: int) -> None:
    matrix = torch.rand(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = matrix + matrix.T
    packed = symmetric.pack(matrix)
    assert packed.shape == (dim * (dim + 1) // 2,)
    assert torch.equal(symmetric.unpack(packed), matrix)


def test_packing_refuses_other_shapes() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        symmetric.pack(torch.zeros(2, 3))
    for bad in (torch.zeros(5), torch.zeros(3, 1)):
        with pytest.raises(InputError, match="packed matrix"):
            symmetric.unpack(bad)


# --- sums for secure aggregation


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_shifted_sums_give_the_same_moments(offset: float) -> None:
    parts = [samples(k, 5 + 9 * k, offset) for k in range(4)]
    everything = torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])
    reference = moments_of(*samples(9, 50, offset)).mean  # prototypes of an earlier round
    messages = []
    for z, y in parts:
        sums = ShiftedSums(reference, leave_out=(2,))
        for batch in zip(z.split(4), y.split(4)):
            sums.update(*batch)
        messages.append(sums.to_tensors())
    whole = ShiftedSums(reference, leave_out=(2,)).moments_of_sum(messages)
    assert_same(whole, pooled(*everything, leave_out=(2,)), 1e-10)
    assert len({tuple(m["mean"].shape if "mean" in m else m["first"].shape) for m in messages}) == 1


def test_shifted_sums_of_an_absent_class_give_no_prototype() -> None:
    z, y = samples(0, 30)
    sums = ShiftedSums(torch.ones(C, D))
    sums.update(z[y != 1], y[y != 1])
    whole = sums.moments_of_sum([sums.to_tensors()])
    assert whole.count[1] == 0
    assert (whole.mean[1] == 0).all()


def test_shifted_sums_refuse_foreign_messages() -> None:
    sums = ShiftedSums(torch.zeros(C, D))
    with pytest.raises(InputError, match="nothing to add"):
        sums.moments_of_sum([])
    with pytest.raises(InputError, match="message has shapes"):
        sums.moments_of_sum([ShiftedSums(torch.zeros(C, D + 1)).to_tensors()])
    with pytest.raises(InputError, match="reference"):
        ShiftedSums(torch.full((C, D), torch.nan))


# --- readouts


def spd(seed: int, dim: int = D) -> torch.Tensor:
    a = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a @ a.T + 0.1 * torch.eye(dim, dtype=torch.float64)


def test_golden_mahalanobis_distances() -> None:
    means = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    readout = ncm.MahalanobisNCM(means, torch.diag(torch.tensor([4.0, 1.0])))
    z = torch.tensor([[1.0, 1.1]])
    assert readout.distances(z)[0].tolist() == pytest.approx([1.46, 2.21, 1.06], abs=1e-6)
    assert readout.predict(z).tolist() == [2]
    assert ncm.EuclideanNCM(means).distances(z)[0].tolist() == pytest.approx([2.21, 5.21, 1.81], abs=1e-6)


@given(seed=st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_scores_head_and_distances_agree(seed: int) -> None:
    z, y = samples(seed, 60)
    readout = ncm.MahalanobisNCM(moments_of(z, y).mean, spd(seed))
    scores, distances = readout.scores(z).double(), readout.distances(z)
    weight, bias = readout.as_linear_head()
    assert weight.dtype == torch.float32
    assert torch.allclose(z.float() @ weight.T + bias, scores.float(), atol=1e-4)
    # equal up to a constant of each sample
    assert torch.allclose(
        scores - scores.mean(dim=1, keepdim=True),
        -distances / 2 + distances.mean(dim=1, keepdim=True) / 2,
        rtol=1e-3,
        atol=1e-3,
    )


@given(seed=st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_joint_linear_map_leaves_the_distances(seed: int) -> None:
    z, y = samples(seed, 60)
    means, sigma = moments_of(z, y).mean, spd(seed)
    a = spd(seed + 1) @ torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    first = ncm.MahalanobisNCM(means, sigma)
    mapped = ncm.MahalanobisNCM(means @ a.T, a @ sigma @ a.T)
    assert torch.allclose(first.distances(z), mapped.distances(z @ a.T), rtol=1e-6, atol=1e-8)


def test_common_translation_leaves_the_predictions() -> None:
    z, y = samples(1, 200)
    means, sigma = moments_of(z, y).mean, spd(1)
    first = ncm.MahalanobisNCM(means, sigma).predict(z)
    assert torch.equal(first, ncm.MahalanobisNCM(means + 100, sigma).predict(z + 100))


def test_ridge_leads_from_mahalanobis_to_euclidean() -> None:
    z, y = samples(2, 300)
    means, sigma = moments_of(z, y).mean, spd(2)
    euclidean = ncm.EuclideanNCM(means).predict(z)
    assert torch.equal(ncm.MahalanobisNCM(means, ncm.regularise(sigma, 1e9)).predict(z), euclidean)
    assert not torch.equal(ncm.MahalanobisNCM(means, ncm.regularise(sigma, 0)).predict(z), euclidean)


def test_mahalanobis_uses_the_spread_that_euclid_ignores() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (4000,), generator=generator)
    z = torch.randn(4000, 2, generator=generator) * torch.tensor([10.0, 0.5])
    z[:, 1] += 2.0 * y  # only the narrow direction tells the classes apart
    moments = ClassMoments(2, 2)
    moments.update(z, y)
    means = ncm.prototypes(moments)
    means[1, 0] += 3.0  # an error in the wide direction, as few samples make it
    accuracy = {
        "mahalanobis": (
            ncm.MahalanobisNCM(means, ncm.regularise(moments.covariance(), 1e-4)).predict(z) == y
        ),
        "euclidean": (ncm.EuclideanNCM(means).predict(z) == y),
    }
    assert accuracy["mahalanobis"].float().mean() > 0.95
    assert accuracy["euclidean"].float().mean() < 0.8


def test_lowest_class_wins_a_tie() -> None:
    readout = ncm.EuclideanNCM(torch.tensor([[5.0], [1.0], [-1.0], [1.0]]))
    assert readout.predict(torch.tensor([[0.0], [1.0]])).tolist() == [1, 1]


def test_absent_class_is_never_predicted() -> None:
    moments = ClassMoments(3, 2)
    moments.update(torch.tensor([[1.0, 1.0], [9.0, 9.0]]), torch.tensor([1, 2]))
    means = ncm.prototypes(moments)
    assert torch.isnan(means[0]).all()
    readout = ncm.EuclideanNCM(means)
    z = torch.zeros(1, 2)  # exactly where a missing prototype filled with zeros would lie
    assert readout.predict(z).tolist() == [1]
    assert readout.as_linear_head()[1][0] == -torch.inf
    assert torch.isnan(readout.distances(z)[0, 0])


def test_bad_prototypes_and_covariances_are_refused() -> None:
    means = torch.rand(3, 2)
    with pytest.raises(InputError, match="positive definite"):
        ncm.MahalanobisNCM(means, torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(InputError, match="prototypes"):
        ncm.MahalanobisNCM(means, torch.eye(3))
    with pytest.raises(InputError, match="not for all"):
        ncm.EuclideanNCM(torch.full((3, 2), torch.nan))
    half = means.clone()
    half[0, 0] = torch.nan
    with pytest.raises(InputError, match="finite rows"):
        ncm.EuclideanNCM(half)


# --- ridge


def test_ridge_scales_and_rotates_with_the_features() -> None:
    sigma = spd(4)
    rotation = torch.linalg.qr(spd(5)).Q
    assert torch.allclose(ncm.regularise(49 * sigma, 0.1), 49 * ncm.regularise(sigma, 0.1))
    assert torch.allclose(
        ncm.regularise(rotation @ sigma @ rotation.T, 0.1),
        rotation @ ncm.regularise(sigma, 0.1) @ rotation.T,
    )
    assert torch.allclose(ncm.regularise(sigma, 0.1).trace(), 1.1 * sigma.trace())


def test_ridge_bounds_the_condition_number_with_dead_features() -> None:
    sigma = torch.zeros(64, 64, dtype=torch.float64)
    sigma[0, 0] = 3.0
    assert torch.linalg.cond(ncm.regularise(sigma, 1e-2)) <= 64 / 1e-2 + 1 + 1e-6


def test_ridge_refuses_what_it_cannot_mend() -> None:
    with pytest.raises(InputError, match="trace 0"):
        ncm.regularise(torch.zeros(3, 3), 0.1)
    for rho in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="rho"):
            ncm.regularise(torch.eye(3), rho)
    with pytest.raises(InputError, match="covariance"):
        ncm.regularise(torch.full((3, 3), torch.nan), 0.1)


# --- features of a model


def test_embedding_changes_neither_the_model_nor_its_mode() -> None:
    model = models.build("resnet18", num_classes=3, in_channels=1, image_size=8, seed=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    z = embed(model, x, batch_size=4)
    assert z.shape == (10, 512)
    assert not z.requires_grad
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    model.eval()
    with torch.no_grad():
        assert torch.allclose(z, model.features(x), atol=1e-5)
    assert embed(model, x[:0]).shape == (0, 512)
    assert not model.training


def test_a_finite_sum_is_not_asked_of_finite_values():
    assert all_finite(torch.full((4,), 3e38))
    for bad in (torch.inf, -torch.inf, torch.nan):
        assert not all_finite(torch.tensor([1.0, bad, -bad]))


def test_triangles_are_added_as_they_came():
    """The server's sum of read messages has the bits of the sum of their matrices."""
    draw = torch.Generator().manual_seed(5)
    parts = [ClassMoments(3, 4) for _ in range(3)]
    for part in parts:
        part.update(torch.randn(20, 4, generator=draw), torch.arange(20) % 3)
    read = [ClassMoments.from_tensors(part.to_tensors(torch.float64), 3) for part in parts]
    merged, expected = ClassMoments.merge(read), ClassMoments.merge(parts)
    assert merged.scatter is not None
    assert expected.scatter is not None
    assert torch.equal(merged.scatter, expected.scatter)
