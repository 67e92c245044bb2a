"""3D object detection from LiDAR and cameras: a compact CMT (Yan et al., 2023)."""

from fedlib.models.detector.cmt import CMT, Outputs, build
from fedlib.models.detector.config import PRESETS, Config, preset
from fedlib.models.detector.inputs import Inputs, Prepared, Targets, augmented, collate, lidar_grid, prepare

__all__ = [
    "CMT",
    "PRESETS",
    "Config",
    "Inputs",
    "Outputs",
    "Prepared",
    "Targets",
    "augmented",
    "build",
    "collate",
    "lidar_grid",
    "prepare",
    "preset",
]
