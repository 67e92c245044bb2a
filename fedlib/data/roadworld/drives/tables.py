"""The thirteen tables of nuScenes (Caesar et al., 2020) as lists of records, from what a drive has recorded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedlib.data.nuscenes.frame import ATTRIBUTES, CAMERAS, LIDAR
from fedlib.data.nuscenes.root import TABLES
from fedlib.data.roadworld.drives.rig import Mount
from fedlib.data.roadworld.drives.traffic import Actor, Drive

Records = dict[str, list[dict[str, Any]]]
CATEGORIES = {
    "car": "vehicle.car",
    "truck": "vehicle.truck",
    "bus": "vehicle.bus.rigid",
    "trailer": "vehicle.trailer",
    "construction_vehicle": "vehicle.construction",
    "pedestrian": "human.pedestrian.adult",
    "motorcycle": "vehicle.motorcycle",
    "bicycle": "vehicle.bicycle",
    "traffic_cone": "movable_object.trafficcone",
    "barrier": "movable_object.barrier",
}
VISIBILITY = ("v0-40", "v40-60", "v60-80", "v80-100")
START = 1_500_000_000_000_000  # microseconds


def token(*key: object) -> str:
    """Return the token (32 hex digits) of what a readable key names."""
    return hashlib.md5("/".join(map(str, key)).encode(), usedforsecurity=False).hexdigest()


def shared() -> Records:
    """Return all tables with the records that no drive adds to."""
    tables: Records = {name: [] for name in TABLES}
    tables["category"] = [
        {
            "token": token("category", name),
            "name": name,
            "description": f"Generated: {kind.replace('_', ' ')}.",
        }
        for kind, name in CATEGORIES.items()
    ]
    tables["attribute"] = [
        {"token": token("attribute", name), "name": name, "description": f"Generated: {name}."}
        for name in ATTRIBUTES
    ]
    tables["visibility"] = [
        {"token": str(number), "level": level, "description": f"visibility of {level[1:]} % in the cameras"}
        for number, level in enumerate(VISIBILITY, 1)
    ]
    tables["sensor"] = [
        {
            "token": token("sensor", channel),
            "channel": channel,
            "modality": "lidar" if channel == LIDAR else "camera",
        }
        for channel in (*CAMERAS, LIDAR)
    ]
    return tables


class Recorder:
    """Collects the records of one drive.

    Attributes:
        name: of the scene, the log and the map; all tokens derive from it.
        tables: the records, by table.
    """

    def __init__(
        self, name: str, number: int, drive: Drive, mounts: dict[str, Mount], image_size: tuple[int, int]
    ) -> None:
        self.name, self.drive, self.image_size = name, drive, image_size
        self.start = START + number * 1_000_000_000
        self.tables: Records = {table: [] for table in TABLES}
        self.tables["log"].append(
            {
                "token": token(name, "log"),
                "logfile": name,
                "vehicle": f"roadworld-{drive.domain.city}",
                "date_captured": "2017-07-14",
                "location": drive.location,
            }
        )
        self.tables["map"].append(
            {
                "token": token(name, "map"),
                "log_tokens": [token(name, "log")],
                "category": "semantic_prior",
                "filename": f"maps/{token(name, 'map')}.png",
            }
        )
        for channel, mount in mounts.items():
            self.tables["calibrated_sensor"].append(
                {
                    "token": token(name, "calibration", channel),
                    "sensor_token": token("sensor", channel),
                    "translation": mount.to_ego[:3, 3].tolist(),
                    "rotation": quaternion(mount.to_ego[:3, :3]),
                    "camera_intrinsic": [] if mount.intrinsic is None else mount.intrinsic.tolist(),
                }
            )
        count = len(drive.times)
        self.tables["scene"].append(
            {
                "token": token(name),
                "name": name,
                "description": drive.description,
                "log_token": token(name, "log"),
                "nbr_samples": count,
                "first_sample_token": self.sample(0),
                "last_sample_token": self.sample(count - 1),
            }
        )
        for k in range(count):
            self.tables["sample"].append(
                {
                    "token": self.sample(k),
                    "timestamp": self.timestamp(float(drive.times[k])),
                    "scene_token": token(name),
                    "prev": self.sample(k - 1) if k else "",
                    "next": self.sample(k + 1) if k + 1 < count else "",
                }
            )

    def sample(self, k: int) -> str:
        """Return the token of key frame k."""
        return token(self.name, "sample", k)

    def timestamp(self, time: float) -> int:
        """Return microseconds of a time of the drive, in seconds from its middle."""
        return self.start + 100_000_000 + round(1e6 * time)

    def data(self, channel: str, time: float, key_frame: int, is_key_frame: bool) -> str:
        """Record one picture or sweep, with the pose of the car; return the file's name below the root."""
        stamp = self.timestamp(time)
        lidar = channel == LIDAR
        folder = "samples" if is_key_frame else "sweeps"
        name = f"{folder}/{channel}/{self.name}__{channel}__{stamp}.{'pcd.bin' if lidar else 'jpg'}"
        key = token(self.name, channel, stamp)
        pose = self.drive.to_world @ self.drive.ego(time)
        self.tables["ego_pose"].append(
            {
                "token": key,
                "timestamp": stamp,
                "rotation": quaternion(pose[:3, :3]),
                "translation": pose[:3, 3].tolist(),
            }
        )
        height, width = (0, 0) if lidar else self.image_size
        self.tables["sample_data"].append(
            {
                "token": key,
                "sample_token": self.sample(key_frame),
                "ego_pose_token": key,
                "calibrated_sensor_token": token(self.name, "calibration", channel),
                "timestamp": stamp,
                "fileformat": "pcd" if lidar else "jpg",
                "is_key_frame": is_key_frame,
                "height": height,
                "width": width,
                "filename": name,
                "prev": "",
                "next": "",
            }
        )
        return name

    def annotation(self, number: int, actor: Actor, k: int, visibility: int, points: int) -> None:
        """Record one box in key frame k.

        Args:
            number: of the actor in the drive.
            actor: who it is.
            k: key frame.
            visibility: 1 to 4.
            points: LiDAR points in the box.
        """
        placed = actor.placed(float(self.drive.times[k]))
        low, high = actor.body.bounds
        middle = self.drive.to_world @ np.append(placed.to_world((low + high) / 2), 1.0)
        yaw = actor.yaw + self.drive.pose[2]
        last = len(self.drive.times) - 1
        names = [actor.attribute] if actor.attribute else []
        self.tables["sample_annotation"].append(
            {
                "token": token(self.name, "box", number, k),
                "sample_token": self.sample(k),
                "instance_token": token(self.name, "instance", number),
                "visibility_token": str(visibility),
                "attribute_tokens": [token("attribute", name) for name in names],
                "translation": middle[:3].tolist(),
                "size": list(actor.body.size),
                "rotation": [math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)],
                "num_lidar_pts": points,
                "num_radar_pts": 0,
                "prev": token(self.name, "box", number, k - 1) if k else "",
                "next": token(self.name, "box", number, k + 1) if k < last else "",
            }
        )
        if k == 0:
            self.tables["instance"].append(
                {
                    "token": token(self.name, "instance", number),
                    "category_token": token("category", CATEGORIES[actor.kind]),
                    "nbr_annotations": last + 1,
                    "first_annotation_token": token(self.name, "box", number, 0),
                    "last_annotation_token": token(self.name, "box", number, last),
                }
            )

    def finished(self) -> Records:
        """Chain the pictures and sweeps of each sensor, and return all records."""
        chains: dict[str, list[dict[str, Any]]] = {}
        for record in self.tables["sample_data"]:
            chains.setdefault(record["calibrated_sensor_token"], []).append(record)
        for chain in chains.values():
            chain.sort(key=lambda record: record["timestamp"])
            for earlier, later in pairwise(chain):
                earlier["next"], later["prev"] = later["token"], earlier["token"]
        return self.tables


def quaternion(rotation: np.ndarray) -> list[float]:
    """Return w, x, y, z of a rotation (3, 3)."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(rotation).as_quat().tolist()
    return [w, x, y, z]


def joined(parts: Sequence[Records]) -> Records:
    """Return the shared records and those of all drives, in their order."""
    tables = shared()
    for part in parts:
        for name, records in part.items():
            tables[name] += records
    return tables
