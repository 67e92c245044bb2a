"""What moves the scores of a detector's layers, and what layers score for nothing."""

from __future__ import annotations

import pytest
import torch

from fedlib.data.nuscenes import DrivingSet
from fedlib.errors import InputError
from fedlib.experiments import fedcka_detection as detection
from fedlib.experiments import fedcka_masks as masks
from fedlib.experiments import fedcka_probe as probe
from fedlib.experiments import settings
from fedlib.features.cka import linear_cka
from fedlib.models import detector

SMALL = detector.Config(
    cells=48, queries=24, image_size=(16, 32), width=16, lidar_width=16, ffn=32, depth_bins=4, image_hidden=16
)
CONFIG = settings.load("fedcka", "smoke").for_scenes().model_copy(update={"inputs": 2, "warm_epochs": 0})


@pytest.fixture(autouse=True)
def small(generated: DrivingSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection.data, "driving", lambda name, **options: generated)
    monkeypatch.setitem(detector.PRESETS, "tiny", SMALL)
    monkeypatch.setenv("FEDLIB_WORKERS", "1")


def test_larger_and_more_steps_leave_fewer_layers_alike() -> None:
    study = probe.scores_after(CONFIG, "A", factors=[0.1, 1.0], epochs=[1, 4])
    assert study.metrics.groupby(["factor", "epochs"])["steps"].first().tolist() == [1, 4, 1, 4]
    median = study.metrics.groupby(["factor", "epochs"])["value"].median()
    assert 1 > median[0.1, 1] > median[1.0, 1] > median[1.0, 4]
    assert median[0.1, 1] > median[0.1, 4]
    again = probe.scores_after(CONFIG, "A", factors=[1.0], epochs=[4])
    assert again.runs[0].key == study.runs[3].key
    for changed, message in (({"client": "F"}, "client"), ({"factors": [0.0]}, "factor")):
        with pytest.raises(InputError, match=message):
            probe.scores_after(CONFIG, **({"client": "A", "factors": [1.0], "epochs": [1]} | changed))


def test_what_layers_score_for_nothing_follows_their_rows_and_channels() -> None:
    found = probe.blind_spots(CONFIG)
    assert list(found.index) == list(masks.anatomy(detector.build(SMALL, 0)).index)
    stem = found.loc["lidar.stem.0"]
    assert (stem["rows"], stem["channels"]) == (12 * 12, 16)
    assert stem["formula"] == pytest.approx(1 / (1 + 12 * 12 / 16))
    query = found.loc["decoder.1.cross_attention.q"]
    assert (query["rows"], query["channels"]) == (24, 16)
    assert query["formula"] > stem["formula"], "fewer rows for as many channels"
    alive = found[found["constant"] == 0].dropna()
    assert stem["shuffled"] == pytest.approx(stem["directions"] / (12 * 12 - 1))
    assert alive["shuffled"].between(0, 1).all()
    assert (found["shuffled"][found["constant"] == 1] == 1).all(), (
        "what is the same everywhere counts as alike"
    )


def test_the_step_size_falls_along_half_a_cosine_to_its_floor() -> None:
    config = CONFIG.model_copy(update={"rounds": 2, "lr": 0.01, "lr_floor": 0.1})
    found = probe.step_sizes(config)
    assert found["round"].tolist() == [1, 2]
    eighth = 2**-0.5  # cos(pi / 4)
    expected = [0.01 * (0.1 + 0.9 * (1 + sign * eighth) / 2) for sign in (1, -1)]
    assert found["value"].tolist() == pytest.approx(expected)


def test_shuffled_rows_score_as_the_effective_number_of_directions_says() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 64, generator=draw) * torch.linspace(0.1, 2, 64)
    directions = probe.effective_directions(x)
    shuffled = [linear_cka(x, x[torch.randperm(60, generator=draw)]) for _ in range(40)]
    assert sum(shuffled) / 40 == pytest.approx(directions / 59, abs=0.005)
    line = torch.randn(60, 1, generator=draw) @ torch.ones(1, 64)
    assert probe.effective_directions(line) == pytest.approx(1)
    assert probe.effective_directions(torch.eye(8)) == pytest.approx(7), "all but the mean"
