"""One key frame as arrays: points, pictures, calibration and boxes, all in one frame of reference.

The frame of reference is the car's own at the time of the LiDAR sweep: x forward, y left, z up, the road near
z = 0. Boxes are rows of nine numbers x, y, z (middle), w, l, h, yaw, vx, vy: metres, radians from x to y, metres
per second relative to the ground but along the axes of the frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Detection classes in the order of nuscenes-devkit.
CLASSES = (
    "car",
    "truck",
    "bus",
    "trailer",
    "construction_vehicle",
    "pedestrian",
    "motorcycle",
    "bicycle",
    "traffic_cone",
    "barrier",
)
#: Attributes in the order of nuscenes-devkit.
ATTRIBUTES = (
    "pedestrian.moving",
    "pedestrian.sitting_lying_down",
    "pedestrian.standing",
    "cycle.with_rider",
    "cycle.without_rider",
    "vehicle.moving",
    "vehicle.parked",
    "vehicle.stopped",
)
CAMERAS = (
    "CAM_FRONT",
    "CAM_FRONT_RIGHT",
    "CAM_BACK_RIGHT",
    "CAM_BACK",
    "CAM_BACK_LEFT",
    "CAM_FRONT_LEFT",
)
LIDAR = "LIDAR_TOP"
BOX = ("x", "y", "z", "w", "l", "h", "yaw", "vx", "vy")


@dataclass(frozen=True, eq=False)
class Labels:
    """The annotated boxes of the ten detection classes in one key frame.

    Attributes:
        boxes: float64 (M, 9), see ``BOX``; vx and vy are NaN where the devkit gives no velocity.
        classes: int64 (M,), index into ``CLASSES``.
        attributes: int64 (M,), index into ``ATTRIBUTES``, -1 for none.
        visibility: int64 (M,), 1 (0 to 40 % visible in the cameras) to 4 (80 to 100 %); 0 where unknown.
        num_points: int64 (M,), LiDAR and radar points in the box.
        tokens: of the annotations.
    """

    boxes: np.ndarray
    classes: np.ndarray
    attributes: np.ndarray
    visibility: np.ndarray
    num_points: np.ndarray
    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, eq=False)
class Frame:
    """One key frame.

    Attributes:
        token: of the sample.
        scene: name.
        domain: letter.
        timestamp: microseconds.
        ego_to_global: float64 (4, 4), pose of the frame of reference.
        lidar_to_ego: float64 (4, 4); ``lidar_to_ego[:3, 3]`` is the place of the LiDAR.
        points: float32 (N, 5): x, y, z, intensity 0 to 255, seconds since measured (0 for the newest sweep);
            motion of the car is compensated, motion of others is not.
        images: uint8 (V, H, W, 3), views in the order of ``CAMERAS``; V = 0 if not asked for.
        projections: float64 (V, 4, 4): homogeneous points of the frame to (column x depth, row x depth, depth,
            1) in pixels of ``images``, with the car's motion between LiDAR and camera.
        camera_to_ego: float64 (V, 4, 4), mounting of each camera.
        intrinsics: float64 (V, 3, 3) in pixels of ``images``.
        labels: annotated boxes.
    """

    token: str
    scene: str
    domain: str
    timestamp: int
    ego_to_global: np.ndarray
    lidar_to_ego: np.ndarray
    points: np.ndarray
    images: np.ndarray
    projections: np.ndarray
    camera_to_ego: np.ndarray
    intrinsics: np.ndarray
    labels: Labels


def corners(boxes: np.ndarray) -> np.ndarray:
    """Return the eight corners (M, 8, 3) of boxes (M, >= 7); the first four are the front, seen from the rear
    clockwise from the upper left."""
    signs = np.array([(f, s, u) for f in (1, -1) for s, u in ((1, 1), (-1, 1), (-1, -1), (1, -1))])
    local = 0.5 * signs * boxes[:, None, [4, 3, 5]]  # length along x, width along y
    c, s = np.cos(boxes[:, 6, None]), np.sin(boxes[:, 6, None])
    x, y = local[..., 0], local[..., 1]
    return np.stack([c * x - s * y, s * x + c * y, local[..., 2]], axis=2) + boxes[:, None, :3]


def moved(boxes: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """Return boxes (M, 9) in another frame of reference, ``transform`` (4, 4) from this one to that.

    Boxes stand upright in both; the heading is that of the turned forward axis, as the devkit measures it.
    """
    rotation = transform[:3, :3]
    result = boxes.copy()
    result[:, :3] = boxes[:, :3] @ rotation.T + transform[:3, 3]
    forward = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1) @ rotation[:2, :2].T
    result[:, 6] = np.arctan2(forward[:, 1], forward[:, 0])
    result[:, 7:9] = boxes[:, 7:9] @ rotation[:2, :2].T
    return result
