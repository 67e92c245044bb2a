"""The whole chain: a root in nuScenes format, the detector, its loss, its boxes, and the devkit's metrics."""

from __future__ import annotations

import pytest
import torch

from fedlib.data.detection_metrics import evaluate_with_devkit
from fedlib.data.nuscenes import DrivingSet
from fedlib.federation.detection import Detection, detection_data
from fedlib.federation.engine import one_thread
from fedlib.models.detector import preset

STEPS = 100


@pytest.mark.slow
def test_the_detector_learns_ten_frames_by_heart(generated: DrivingSet) -> None:
    """tests/benchmarks/detector.py does the same with frames of two cities and says how long it takes."""
    task = Detection(preset("tiny"), augment=False)
    tokens = [t for domain in "AE" for split in ("train", "val") for t in generated.samples(domain, split)][
        :10
    ]
    frames = detection_data(generated, tokens, task.config)
    model = task.build_model(0).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    with one_thread():
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, step / 20, (STEPS - step) / 50)
            optimizer.zero_grad()
            task.loss(model, list(frames.frames)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
            optimizer.step()
    model.eval()
    with torch.no_grad():
        found = dict(zip(frames.tokens, task.predict(model, list(frames.frames)), strict=True))
    scores = evaluate_with_devkit(frames.truth, found)
    assert sum(scores.boxes.values()) > 20
    assert scores.mean_ap > 0.9
    assert scores.tp_errors["trans_err"] < 0.2
    assert task.score(frames, [list(found.values())])["map"] == pytest.approx(scores.mean_ap, abs=1e-9)
