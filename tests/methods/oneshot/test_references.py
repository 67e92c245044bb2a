"""FedAvg among the one-shot methods, and the reference rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from fedlib import models, seeds
from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData, batches
from fedlib.methods.oneshot import base, frozen_features, references
from fedlib.methods.oneshot.base import Problem
from fedlib.methods.oneshot.fedavg_oneshot import FedAvgRounds, fedavg_oneshot

Features = list[tuple[torch.Tensor, torch.Tensor]]


def test_fedavg_of_one_client_is_centralised_sgd(
    clients: list[ImageData], problem: Problem, tmp_path: Path
) -> None:
    settings = FedAvgRounds(rounds=1, local_epochs=2, lr=0.05, batch_size=32)
    result = fedavg_oneshot("cnn3_bn", clients[:1], problem, settings, 3, tmp_path / "run", workers=1)
    model = models.build("cnn3_bn", num_classes=3, in_channels=1, image_size=8, seed=3).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        order = seeds.torch_generator(3, "batches", 1, 0, epoch)
        for (x, y), _ in batches(clients[0], 32, order):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for name, value in result.model.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name


def test_fedavg_of_one_round_has_one_uplink_and_fifty_rounds_have_fifty(
    clients: list[ImageData], problem: Problem, test_data: ImageData, tmp_path: Path
) -> None:
    one = fedavg_oneshot("cnn3", clients, problem, FedAvgRounds.one_round(), 0, tmp_path / "one", workers=1)
    assert one.ledger.uplinks() == {0: 1, 1: 1}
    assert one.method == "fedavg(1)"
    assert FedAvgRounds().rounds == 50
    settings = FedAvgRounds(rounds=4, lr=0.1, batch_size=16)
    many = fedavg_oneshot("cnn3_bn", clients, problem, settings, 0, tmp_path / "many", workers=1)
    assert many.ledger.uplinks() == {0: 4, 1: 4}
    assert len(many.history) == 4
    assert many.budget["rounds"] == 4
    assert many.scores(test_data)["accuracy"] > 80


def test_bytes_are_those_of_the_round_loop(
    clients: list[ImageData], problem: Problem, tmp_path: Path
) -> None:
    from fedlib.federation.rounds import Trajectory

    settings = FedAvgRounds(rounds=2, batch_size=60)
    result = fedavg_oneshot("cnn3", clients, problem, settings, 0, tmp_path / "run", workers=1)
    loop = Trajectory(tmp_path / "run").ledger()
    frame = result.ledger.frame()
    for direction in ("up", "down"):
        of_loop = loop[(loop.kind == "weights") & (loop.direction == direction)]["bytes"].sum()
        assert frame[frame.direction == direction]["bytes"].sum() == of_loop


def test_order_of_clients_changes_nothing(
    clients: list[ImageData], problem: Problem, test_data: ImageData, trained: list[models.Classifier]
) -> None:
    there = base.logits(references.logit_ensemble(trained, problem).model, test_data)
    back = base.logits(references.logit_ensemble(trained[::-1], problem).model, test_data)
    assert np.allclose(there, back, atol=1e-5)


def test_fedavg_refuses_a_label_that_is_no_class_before_training(
    clients: list[ImageData], problem: Problem, tmp_path: Path
) -> None:
    odd = dataclasses.replace(clients[1], labels=clients[1].labels + 5)
    with pytest.raises(InputError, match="client 1 has the label"):
        fedavg_oneshot(
            "cnn3", [clients[0], odd], problem, FedAvgRounds.one_round(), 0, tmp_path / "run", workers=1
        )
    assert not (tmp_path / "run").exists()


def test_local_only_rows(trained: list[models.Classifier], test_data: ImageData) -> None:
    rows = references.local_only(trained, test_data)
    accuracies = [base.scores(model, test_data)["accuracy"] for model in trained]
    assert rows["best"] == max(accuracies)
    assert rows["mean"] == pytest.approx(np.mean(accuracies))
    assert rows["ledger"].uplinks() == {}


def test_ensemble_row_sends_every_model_once(
    trained: list[models.Classifier], problem: Problem, test_data: ImageData
) -> None:
    result = references.logit_ensemble(trained, problem)
    assert result.ledger.uplinks() == {0: 1, 1: 1}
    assert result.scores(test_data)["accuracy"] > 80


# --- heads on frozen features ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> models.Embedder:
    return models.embedder("cnn3_bn", dim=6, in_channels=1, image_size=8, seed=0)


@pytest.fixture(scope="module")
def features(encoder: models.Embedder, clients: list[ImageData]) -> Features:
    return frozen_features.client_features(encoder, clients)


def together(features: Features) -> tuple[np.ndarray, np.ndarray]:
    return (
        torch.cat([z for z, _ in features]).double().numpy(),
        torch.cat([y for _, y in features]).numpy(),
    )


def test_frozen_ncm_is_the_nearest_centroid_of_all_features_together(
    encoder: models.Embedder, features: Features, test_data: ImageData
) -> None:
    result = frozen_features.frozen_ncm(encoder, features, 3)
    ((z, _),) = frozen_features.client_features(encoder, [test_data])
    expected = NearestCentroid().fit(*together(features)).predict(z.double().numpy())
    assert np.array_equal(base.logits(result.model, test_data).argmax(1), expected)
    assert result.ledger.uplinks() == {0: 1, 1: 1}


def test_frozen_lda_is_the_discriminant_of_all_features_together(encoder: models.Embedder) -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    z = torch.randn(300, 4, generator=random) + 2 * torch.randn(3, 4, generator=random)[y]
    parts = [(z[:90], y[:90]), (z[90:], y[90:])]
    model = frozen_features.frozen_lda(encoder, parts, 3, ridge=0.0).model
    scores = z @ model.get_buffer("weight").T + model.get_buffer("bias")
    fitted = LinearDiscriminantAnalysis(solver="lsqr").fit(z.double().numpy(), y.numpy())
    prior = torch.from_numpy(fitted.priors_).log()
    # sklearn divides the scatter by N, ours by N - C, which scales all but the prior
    expected = ((scores.double() - prior) * 300 / 297 + prior).softmax(1)
    assert np.allclose(expected, fitted.predict_proba(z.double().numpy()), atol=1e-4)


def test_a_class_that_no_client_has_is_never_predicted(
    encoder: models.Embedder, features: Features, test_data: ImageData
) -> None:
    known = [(z[y < 2], y[y < 2]) for z, y in features]
    for result in (
        frozen_features.frozen_ncm(encoder, known, 3),
        frozen_features.frozen_lda(encoder, known, 3),
    ):
        predicted = base.logits(result.model, test_data).argmax(1)
        assert set(predicted) == {0, 1}


def test_encoder_stays_as_it_is(encoder: models.Embedder, clients: list[ImageData]) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    frozen_features.client_features(encoder, clients)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize(("covariance", "values"), [("diag", 6), ("spherical", 1), ("full", 21)])
def test_fedpft_sends_float16_mixtures_of_the_size_of_its_covariance(
    covariance: str, values: int, encoder: models.Embedder, features: Features, test_data: ImageData
) -> None:
    settings = frozen_features.FedPFT(components=2, covariance=covariance, head_epochs=30, head_lr=0.02)  # type: ignore[arg-type]
    result = frozen_features.fedpft(encoder, features, 3, settings, 0)
    assert result.scores(test_data)["accuracy"] > 70
    message = frozen_features.mixture_message(features[0][0], settings, 0)
    assert {message[name].dtype for name in ("weights", "means", "factors")} == {torch.float16}
    assert message["factors"].numel() == 2 * values
    assert int(message["count"]) == len(features[0][0])
    again = frozen_features.fedpft(encoder, features, 3, settings, 0)
    assert torch.equal(result.model.get_buffer("weight"), again.model.get_buffer("weight"))


@pytest.mark.parametrize("covariance", ["diag", "spherical", "full"])
def test_features_drawn_from_a_mixture_have_its_moments(covariance: str) -> None:
    random = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[1.0, 0.0], [0.8, 0.6]]) if covariance == "full" else torch.eye(2)
    z = torch.randn(20_000, 2, generator=random) @ mixing.T + torch.tensor([3.0, -1.0])
    settings = frozen_features.FedPFT(components=1, covariance=covariance)  # type: ignore[arg-type]
    drawn = frozen_features.sample_message(
        frozen_features.mixture_message(z, settings, 0), torch.Generator().manual_seed(1)
    )
    assert drawn.shape == z.shape
    assert torch.allclose(drawn.mean(0), z.mean(0), atol=0.05)
    assert torch.allclose(drawn.T.cov(), z.T.cov(), atol=0.05)


def test_one_sample_of_a_class_is_a_mixture_too() -> None:
    z = torch.tensor([[0.5, -0.25]])
    for covariance in ("diag", "spherical", "full"):
        settings = frozen_features.FedPFT(covariance=covariance)  # type: ignore[arg-type]
        message = frozen_features.mixture_message(z, settings, 0)
        drawn = frozen_features.sample_message(message, torch.Generator().manual_seed(0))
        assert torch.allclose(drawn, z, atol=0.05)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("covariance", ["diag", "spherical", "full"])
def test_repeated_samples_need_no_more_components_than_there_are_different_ones(covariance: str) -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(6, 1)
    settings = frozen_features.FedPFT(components=5, covariance=covariance)  # type: ignore[arg-type]
    message = frozen_features.mixture_message(z, settings, seed=0)
    assert message["weights"].tolist() == [0.5, 0.5]
    assert int(message["count"]) == 12


@pytest.mark.parametrize("method", ["frozen_ncm", "frozen_lda", "fedpft"])
def test_features_that_are_not_finite_are_refused(method: str, encoder: models.Embedder) -> None:
    z = torch.ones(4, 16)
    z[2, 3] = torch.nan
    further = (frozen_features.FedPFT(components=1), 0) if method == "fedpft" else ()
    with pytest.raises(InputError, match="NaN or infinite"):
        getattr(frozen_features, method)(encoder, [(z, torch.tensor([0, 1, 0, 1]))], 2, *further)


@pytest.mark.parametrize("method", ["frozen_ncm", "frozen_lda", "fedpft"])
def test_a_label_that_is_no_class_names_the_client(method: str, encoder: models.Embedder) -> None:
    z = torch.ones(2, 16)
    pairs = [(z, torch.tensor([0, 1])), (z, torch.tensor([0, 3]))]
    further = (frozen_features.FedPFT(components=1), 0) if method == "fedpft" else ()
    with pytest.raises(InputError, match="client 1 has the label 3; allowed: 0 to 2"):
        getattr(frozen_features, method)(encoder, pairs, 3, *further)


def test_bad_references_are_refused(
    encoder: models.Embedder, clients: list[ImageData], student: Callable[[], models.Classifier]
) -> None:
    with pytest.raises(InputError, match="covariance is 'tied'"):
        frozen_features.FedPFT(covariance="tied")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="components"):
        frozen_features.FedPFT(components=0)
    with pytest.raises(InputError, match="0 clients"):
        references.local_only([], clients[0])
    none = frozen_features.client_features(encoder, [clients[0].subset(np.arange(0))])
    for call in (
        lambda: frozen_features.frozen_ncm(encoder, none, 3),
        lambda: frozen_features.frozen_lda(encoder, none, 3),
        lambda: frozen_features.fedpft(encoder, none, 3, frozen_features.FedPFT(), 0),
    ):
        with pytest.raises(InputError, match="0 samples"):
            call()
