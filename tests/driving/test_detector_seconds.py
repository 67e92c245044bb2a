"""The parts of a training step are those of the detector, and none is empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedlib import seeds
from fedlib.data.nuscenes import DrivingSet
from fedlib.experiments.detector_seconds import WHOLE, seconds_by_part
from fedlib.federation.detection import Detection, detection_data
from fedlib.federation.engine import one_thread
from fedlib.models.detector import preset


def test_every_part_of_a_step_takes_time(generated: DrivingSet) -> None:
    config = replace(preset("tiny"), queries=10, layers=2)
    data = detection_data(generated, generated.samples("A", "train")[:2], config)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    with one_thread(), seeds.torch_global(0, "test"):
        found = seconds_by_part(Detection(config), data, repeats=1)
    assert list(found)[-1] == WHOLE
    assert len(found) == 11
    assert all(value > 0 for value in found.values())
    assert (np.random.get_state()[1] == before).all(), "global streams are left alone"  # noqa: NPY002
