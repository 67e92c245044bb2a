"""One round of FedCKA taken apart: the pieces are those of the library's own run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedlib.experiments import settings
from fedlib.experiments.fedcka_steps import Steps, differing_weights, row_shapes, shares, trained
from fedlib.experiments.federated import trajectory_of
from fedlib.federation.aggregation import weighted_mean

CONFIG = settings.load("fedcka", "smoke", rounds=2)
STEPS = Steps(CONFIG)


def test_two_rounds_by_hand_have_the_bits_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    method = STEPS.method("FedCKA threshold", tau=0.97)
    first = STEPS.updates(method, STEPS.start(), 1)
    g1 = weighted_mean(first, STEPS.start())
    second = STEPS.updates(method, g1, 2, [update.memory for update in first])
    assert any(update.masks for update in second), "something is kept, or the test shows nothing"
    g2 = weighted_mean(second, g1)
    study = shares(
        CONFIG, {"a": ("FedCKA threshold", {"tau": 0.97}), "b": ("FedCKA threshold", {"tau": 0.0})}
    )
    run, zero = study.runs
    for name, tensor in trajectory_of(run).weights(2).items():
        assert torch.equal(tensor, g2[name]), name
    assert differing_weights(run, run) == 0
    assert differing_weights(run, zero) > 0
    assert set(study.metrics["variant"]) == {"a", "b"}


def test_the_trained_model_is_what_is_sent_and_what_is_kept() -> None:
    g1 = STEPS.start()
    plain = STEPS.updates(STEPS.method("FedAvg"), g1, 2)[1]
    masked = STEPS.updates(STEPS.method("FedCKA threshold", tau=0.97, warmup_rounds=0), g1, 2)[1]
    assert masked.masks
    whole = trained(masked, g1)
    assert list(whole) == list(g1)
    assert all(torch.equal(whole[name], plain.weights[name]) for name in g1)


def test_rows_of_a_convolution_are_its_places_and_the_head_has_one() -> None:
    layers = STEPS.layers()
    shapes = row_shapes(STEPS.model(STEPS.start()), layers, STEPS.inputs(0, 1)[0], "positions")
    assert shapes["backbone.0"] == (64, 32)
    assert shapes["backbone.8"] == (4, 128)
    assert shapes["head"] == (1, 10)
    assert sum(layer.parameters for layer in layers) == sum(
        p.numel() for p in STEPS.model(STEPS.start()).parameters()
    )


def test_inputs_are_the_clients_own_without_repetition() -> None:
    inputs = STEPS.inputs(4, 10)
    assert len({one[0].numpy().tobytes() for one in inputs}) == 10
    again = STEPS.inputs(4, 10)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(inputs, again, strict=True))
