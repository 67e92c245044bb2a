"""The chapter on representation similarity: models inside a federation are those of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedlib.errors import InputError
from fedlib.experiments import settings
from fedlib.experiments.similarity import Federation, over_rounds, similarity, titles, weight_change
from fedlib.methods.fedcka.layers import partition

CONFIG = settings.load("foundations", "smoke", {"num_clients": 3, "rounds": 2})


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    return Federation(CONFIG)


def test_the_average_of_the_local_models_is_the_next_global_one(federation: Federation) -> None:
    sizes = torch.tensor([len(rows) for rows in federation._split.clients], dtype=torch.float64)
    local = [federation.local_model(client, 2).state_dict() for client in range(3)]
    for name, tensor in federation.global_model(2).state_dict().items():
        mean = sum(n * state[name].double() for n, state in zip(sizes, local, strict=True)) / sizes.sum()
        assert torch.equal(mean.float(), tensor), "bit for bit: the same models as in the run"


def test_equal_models_are_alike_and_training_moves_layers(federation: Federation) -> None:
    images = federation.images(20)
    start, trained = federation.global_model(0), federation.global_model(2)
    assert similarity(start, start, images, rows="pooled").to_numpy() == pytest.approx(1)
    moved = similarity(start, trained, images, rows="pooled")
    assert list(moved.index) == ["convolution 1", "convolution 2", "convolution 3", "head"]
    assert (moved < 0.999).any()
    assert (weight_change(start, trained, images) > 0.01).all()
    assert (weight_change(start, start, images) == 0).all()
    assert titles(start, partition(start))["head"] == "head"


def test_rows_of_the_table(federation: Federation) -> None:
    study = over_rounds(CONFIG, (0, 2), 10)
    rows = study.select(metric="cka")
    assert set(rows["round"]) == {1, 2}
    assert set(rows["pair"]) == {"client 0 and its start", "client 2 and its start", "the two clients"}
    assert rows["value"].between(0, 1).all()
    assert len(study.metrics) == 2 * 2 * 3 * 4


def test_what_is_not_there_is_refused(federation: Federation) -> None:
    with pytest.raises(InputError, match="client is 3; allowed: 0 to 2"):
        federation.local_model(3, 1)
    with pytest.raises(InputError, match="round is 0"):
        federation.local_model(0, 0)
    with pytest.raises(InputError, match="number of images is 0"):
        federation.images(0)
