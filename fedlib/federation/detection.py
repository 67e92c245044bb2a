"""3D detection in the round loop: key frames of driving scenes, and CMT (Yan et al., 2023) on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.data.detection_boxes import Detections, Truth, truth_of
from fedlib.data.detection_metrics import evaluate
from fedlib.data.nuscenes import CLASSES, DrivingSet
from fedlib.errors import InputError
from fedlib.federation.frame_cache import FrameCache, prepared_frames
from fedlib.models.detector import CMT, Config, Prepared, augmented, boxes, build, collate, inputs


@dataclass(frozen=True, eq=False)
class DetectionData:
    """Key frames of one client or of a test set, read and cropped once.

    They are in memory, or each is read from its file when a batch is taken; see ``frame_cache``.

    Attributes:
        driving: where they come from.
        tokens: of the samples.
        frames: one per token.
        reach: metres up to which boxes count in the evaluation, that of the detector.
    """

    driving: DrivingSet
    tokens: tuple[str, ...]
    frames: Sequence[Prepared]
    reach: float = np.inf

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def truth(self) -> Truth:
        """What counts in the evaluation.

        Raises:
            InputError: not one annotated box counts.
        """
        return truth_of(self.driving, self.tokens, self.reach)

    def batch(self, indices: Tensor) -> list[Prepared]:
        """Return the frames at ``indices`` (B,), without augmentation."""
        return [self.frames[index] for index in indices.tolist()]

    def subset(self, indices: np.ndarray) -> DetectionData:
        """Return the samples at ``indices`` (n,)."""
        rows = [int(index) for index in indices]
        tokens = tuple(self.tokens[i] for i in rows)
        if isinstance(self.frames, FrameCache):
            return DetectionData(self.driving, tokens, self.frames.of(tokens), self.reach)
        return DetectionData(self.driving, tokens, tuple(self.frames[i] for i in rows), self.reach)


def detection_data(
    driving: DrivingSet, tokens: Sequence[str], config: Config, *, sweeps: int = 2
) -> DetectionData:
    """Read key frames in the sizes of a detector.

    Args:
        driving: a root in nuScenes format.
        tokens: of the samples, for example ``driving.samples("A", "train")``.
        config: of the detector.
        sweeps: LiDAR sweeps to join, the newest included.

    Raises:
        InputError: a sample is unknown, one of its files is missing or damaged, or the disk has no room for frames
            that memory does not hold.
    """
    frames = prepared_frames(driving, tokens, config, sweeps)
    return DetectionData(driving, tuple(tokens), frames, config.reach)


def pooled(parts: Sequence[DetectionData]) -> DetectionData:
    """Return the frames of some parts of a data set, one after the other."""
    tokens = tuple(token for part in parts for token in part.tokens)
    stored = [part.frames for part in parts if isinstance(part.frames, FrameCache)]
    frames = stored[0].of(tokens) if stored else tuple(frame for part in parts for frame in part.frames)
    return DetectionData(parts[0].driving, tokens, frames, parts[0].reach)


@dataclass(frozen=True)
class Detection:
    """3D detection of the ten nuScenes classes.

    Attributes:
        config: sizes and options of the detector.
        augment: rotate, scale and flip the space of each sample in training.
        device: where batches are put.
    """

    config: Config
    augment: bool = True
    device: str = "cpu"

    def build_model(self, seed: int) -> CMT:
        """Return a new detector from ``seed``."""
        return build(self.config, seed)

    def loss(self, model: nn.Module, batch: Sequence[Prepared]) -> Tensor:
        """Return the training loss () of some frames.

        A model in training mode gets augmented frames, modality masks and denoising queries. Their randomness
        starts from torch's stream, which the round loop seeds for each client and round as it does for dropout.
        """
        frames, generator = list(batch), None
        if model.training:
            drawn = int(torch.randint(2**62, ()).item())
            generator = seeds.torch_generator(drawn, "detector")
            if self.augment:
                rng = seeds.rng(drawn, "augmentation")
                frames = [
                    augmented(frame, inputs.augmentation(rng, self.config), self.config) for frame in frames
                ]
        taken = collate(frames, self.device)
        detector = _detector(model)
        return torch.stack(list(detector.losses(taken, detector(taken, generator)).values())).sum()

    def predict(self, model: nn.Module, batch: Sequence[Prepared]) -> list[Detections]:
        """Return the detections of each frame: at most 300, by falling score."""
        outputs = _detector(model)(collate(list(batch), self.device))
        result = []
        for logits, codes in zip(outputs.logits[-1].float().cpu(), outputs.codes[-1].float().cpu()):
            found, classes, scores = boxes.decode(logits, codes)
            result.append(Detections(found.numpy(), classes.numpy(), scores.numpy()))
        return result

    def score(self, data: DetectionData, predictions: Sequence[list[Detections]]) -> dict[str, float]:
        """Return ``map``, ``nds``, ``cap`` (where there are cars), the mean errors, and ``ap_<class>``.

        All are over the classes that occur, up to the detector's reach; see ``fedlib.data.detection_metrics``.

        Raises:
            InputError: not one annotated box counts.
        """
        found = dict(zip(data.tokens, (item for batch in predictions for item in batch), strict=True))
        scores = evaluate(data.truth, found)
        result = {"map": scores.mean_ap, "nds": scores.nds} | scores.tp_errors
        if CLASSES[0] in scores.ap:
            result["cap"] = scores.cap
        return result | {f"ap_{name}": float(np.mean(values)) for name, values in scores.ap.items()}


def _detector(model: nn.Module) -> CMT:
    if not isinstance(model, CMT):
        raise InputError(f"the model is {type(model).__name__}; allowed: CMT")
    return model
