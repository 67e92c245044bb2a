"""A folder in nuScenes format, real or generated, read through nuscenes-devkit: scenes, domains, frames."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.data.files import reading
from fedlib.data.imageset import Card
from fedlib.data.nuscenes import domains
from fedlib.data.nuscenes.frame import ATTRIBUTES, CAMERAS, CLASSES, LIDAR, Frame, Labels, moved
from fedlib.data.nuscenes.sensors import (
    bad_size,
    read_picture,
    read_sweep,
    rotation_of,
    transform_of,
    yaw_of,
)
from fedlib.errors import InputError, choose

TABLES = (
    "category",
    "attribute",
    "visibility",
    "instance",
    "sensor",
    "calibrated_sensor",
    "ego_pose",
    "log",
    "scene",
    "sample",
    "sample_data",
    "sample_annotation",
    "map",
)
VERSIONS = ("v1.0-trainval", "v1.0-mini", "v1.0-synth")
NEAREST = 1.0  # metres: closer returns come from the car itself and are left out, as by the devkit


@dataclass(frozen=True)
class Scene:
    """A scene and its place in the experiment.

    Attributes:
        name: as in the table.
        domain: letter.
        split: train, val or warm; other where neither the official lists nor ``splits.json`` name it.
        samples: tokens of the key frames in time order.
    """

    name: str
    domain: str
    split: str
    samples: tuple[str, ...]


class DrivingSet:
    """Scenes of the five domains with their sensor data.

    Attributes:
        name: of the data set.
        folder: the root.
        version: name of the folder of the tables.
        card: what a reader has to know.

    Raises:
        InputError: no folder of tables, or a table is missing.
    """

    def __init__(self, name: str, folder: Path, version: str, card: Card) -> None:
        self.name = name
        self.folder = Path(folder)
        self.version = version
        self.card = card
        if missing := missing_tables(self.folder, version):
            raise InputError(f"{self.folder / version} lacks {', '.join(missing)}; unpack the metadata again")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return DrivingSet, (self.name, self.folder, self.version, self.card)

    @cached_property
    def devkit(self) -> Any:
        """The tables as ``nuscenes.NuScenes`` (all of nuScenes takes about a minute and some gigabytes).

        Raises:
            InputError: a table is damaged, a record points to one that is not there, or a map is missing.
        """
        os.environ.setdefault("MPLBACKEND", "Agg")  # the devkit imports pyplot
        from nuscenes import NuScenes  # here, for it takes seconds

        with reading(self.folder / self.version):
            try:
                return NuScenes(self.version, str(self.folder), verbose=False)
            except AssertionError as error:  # of a map's file
                raise InputError(f"{error}; unpack the maps again") from error

    @cached_property
    def scenes(self) -> dict[str, Scene]:
        """All scenes by name, in the order of the table.

        Raises:
            InputError: a scene belongs to none of the five domains, or to another one than published.
        """
        database, split_of = self.devkit, self._splits()
        found: dict[str, Scene] = {}
        for record in database.scene:
            location = database.get("log", record["log_token"])["location"]
            try:
                domain = domains.domain_of(location, record["description"])
            except InputError as error:
                raise InputError(f"{record['name']}: {error}") from error
            name = record["name"]
            found[name] = Scene(name, domain, split_of.get(name, "other"), tuple(self._samples(record)))
        domains.check_published({name: scene.domain for name, scene in found.items()})
        return found

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of scenes, ``counts()[domain][split]``."""
        table = {letter: dict.fromkeys(domains.SPLITS, 0) for letter in domains.DOMAINS}
        for scene in self.scenes.values():
            if scene.split in domains.SPLITS:
                table[scene.domain][scene.split] += 1
        return table

    def samples(self, domain: str, split: str) -> tuple[str, ...]:
        """Return the tokens of the key frames of a domain's split, scene after scene.

        Raises:
            InputError: unknown domain or split, or it has no scene.
        """
        choose("domain", domain, domains.DOMAINS)
        choose("split", split, (*domains.SPLITS, domains.WARM))
        tokens = tuple(
            token
            for scene in self.scenes.values()
            if (scene.domain, scene.split) == (domain, split)
            for token in scene.samples
        )
        if not tokens:
            raise InputError(f"domain {domain} has no {split} scene in {self.folder}; allowed: at least one")
        return tokens

    def scene_of(self, token: str) -> Scene:
        """Return the scene of a sample."""
        return self.scenes[self.devkit.get("scene", self._sample(token)["scene_token"])["name"]]

    def frame(
        self, token: str, *, sweeps: int = 2, image_size: tuple[int, int] | None = None, images: bool = True
    ) -> Frame:
        """Read one key frame.

        Args:
            token: of the sample.
            sweeps: most LiDAR sweeps to join, the key frame's own included; a scene's first frames have fewer.
            image_size: height and width in pixels that pictures are resized to; None keeps theirs.
            images: whether to read the pictures; the calibration is given in any case.

        Raises:
            InputError: unknown token, a value out of range, or a file that is missing, truncated or damaged
                (the message names it).
        """
        if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 1:
            raise InputError(f"sweeps is {sweeps!r}; allowed: an integer >= 1")
        sample = self._sample(token)
        lidar = self._sensor(sample, LIDAR)
        to_ego, to_global = self._mount(lidar), self._pose(lidar)
        scene = self.scene_of(token)
        views = [self._view(self._sensor(sample, name), to_global, image_size, images) for name in CAMERAS]
        pictures, projections, mounts, intrinsics = zip(*views)
        return Frame(
            token=token,
            scene=scene.name,
            domain=scene.domain,
            timestamp=sample["timestamp"],
            ego_to_global=to_global,
            lidar_to_ego=to_ego,
            points=self._points(lidar, to_global, sweeps),
            images=np.stack(pictures) if images else np.zeros((0, 0, 0, 3), np.uint8),
            projections=np.stack(projections),
            camera_to_ego=np.stack(mounts),
            intrinsics=np.stack(intrinsics),
            labels=self.labels(token),
        )

    def labels(self, token: str, *, in_global: bool = False) -> Labels:
        """Return the annotated boxes of a key frame, in the order of the table.

        Args:
            token: of the sample.
            in_global: in the global frame instead of the car's.
        """
        from nuscenes.eval.detection.utils import category_to_detection_name

        database, sample = self.devkit, self._sample(token)
        rows, classes, attributes, visibility, points, tokens = [], [], [], [], [], []
        for key in sample["anns"]:
            record = database.get("sample_annotation", key)
            kind = category_to_detection_name(record["category_name"])
            if kind is None:
                continue
            yaw = yaw_of(record["rotation"])
            velocity = database.box_velocity(key)[:2]
            rows.append([*record["translation"], *record["size"], yaw, *velocity])
            classes.append(CLASSES.index(kind))
            names = [database.get("attribute", name)["name"] for name in record["attribute_tokens"]]
            attributes.append(ATTRIBUTES.index(names[0]) if names else -1)
            visibility.append(int(record["visibility_token"] or 0))
            points.append(record["num_lidar_pts"] + record["num_radar_pts"])
            tokens.append(key)
        boxes = np.array(rows, dtype=np.float64).reshape(-1, 9)
        if not in_global:
            boxes = moved(boxes, np.linalg.inv(self._pose(self._sensor(sample, LIDAR))))
        return Labels(
            boxes,
            np.array(classes, dtype=np.int64),
            np.array(attributes, dtype=np.int64),
            np.array(visibility, dtype=np.int64),
            np.array(points, dtype=np.int64),
            tuple(tokens),
        )

    def ego_to_global(self, token: str) -> np.ndarray:
        """Return the pose (4, 4) of the car at the LiDAR sweep of a key frame."""
        return self._pose(self._sensor(self._sample(token), LIDAR))

    def racks(self, token: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the bicycle racks of a key frame in the global frame: rotation (3, 3), middle (3,) and half of
        length, width and height (3,) of each. Cycles in them are not evaluated."""
        records = [self.devkit.get("sample_annotation", key) for key in self._sample(token)["anns"]]
        return [
            (
                rotation_of(record["rotation"]),
                np.array(record["translation"]),
                0.5 * np.array(record["size"])[[1, 0, 2]],
            )
            for record in records
            if record["category_name"] == "static_object.bicycle_rack"
        ]

    def files(self, tokens: Sequence[str], *, sweeps: int = 2) -> list[Path]:
        """Return the files that these frames are read from, each once: LiDAR, the older sweeps too, and pictures.

        Args:
            tokens: of the samples.
            sweeps: as in :meth:`frame`.
        """
        found: dict[Path, None] = {}
        for token in tokens:
            sample = self._sample(token)
            records = [*self._sweeps(self._sensor(sample, LIDAR), sweeps)]
            records += [self._sensor(sample, channel) for channel in CAMERAS]
            found |= dict.fromkeys(self.folder / record["filename"] for record in records)
        return list(found)

    def missing_files(self, tokens: Sequence[str], *, sweeps: int = 2) -> list[Path]:
        """Return those of :meth:`files` that are absent or, for sweeps, not whole."""
        return [path for path in self.files(tokens, sweeps=sweeps) if not _whole(path)]

    # --- tables -------------------------------------------------------------------------------------------------

    def _splits(self) -> Mapping[str, str]:
        """Split of each scene: of ``splits.json`` (``A_train``, ...) where there is one, else the official."""
        path = self.folder / self.version / "splits.json"
        if not path.is_file():
            return {name: split for name, (split, _) in domains.published().items()}
        with reading(path):
            custom = json.loads(path.read_text("utf-8"))
            return {
                name: key.rpartition("_")[2]
                for key, names in custom.items()
                if key.rpartition("_")[0] in domains.DOMAINS
                for name in names
            }

    def _samples(self, scene: Mapping[str, Any]) -> Iterator[str]:
        token = scene["first_sample_token"]
        while token:
            yield token
            token = self.devkit.get("sample", token)["next"]

    def _sample(self, token: str) -> dict[str, Any]:
        try:
            sample: dict[str, Any] = self.devkit.get("sample", token)
        except KeyError as error:
            raise InputError(f"sample {token!r} is not in {self.folder / self.version}") from error
        return sample

    def _sensor(self, sample: Mapping[str, Any], channel: str) -> dict[str, Any]:
        if channel not in sample["data"]:
            raise InputError(f"sample {sample['token']} has no {channel}; allowed: seven sensors")
        record: dict[str, Any] = self.devkit.get("sample_data", sample["data"][channel])
        return record

    def _mount(self, record: Mapping[str, Any]) -> np.ndarray:
        return transform_of(self.devkit.get("calibrated_sensor", record["calibrated_sensor_token"]))

    def _pose(self, record: Mapping[str, Any]) -> np.ndarray:
        return transform_of(self.devkit.get("ego_pose", record["ego_pose_token"]))

    # --- sensor data --------------------------------------------------------------------------------------------

    def _sweeps(self, newest: Mapping[str, Any], sweeps: int) -> Iterator[Mapping[str, Any]]:
        """Yield the record of a sweep and of those before it in the scene, at most so many."""
        record = newest
        for _ in range(sweeps - 1):
            yield record
            if not record["prev"]:
                return
            record = self.devkit.get("sample_data", record["prev"])
        yield record

    def _points(self, newest: Mapping[str, Any], to_global: np.ndarray, sweeps: int) -> np.ndarray:
        to_here = np.linalg.inv(to_global)
        clouds: list[np.ndarray] = []
        for record in self._sweeps(newest, sweeps):
            raw = read_sweep(self.folder / record["filename"])
            raw = raw[np.abs(raw[:, :2]).max(axis=1) >= NEAREST]
            transform = to_here @ self._pose(record) @ self._mount(record)
            cloud = np.empty((len(raw), 5), dtype=np.float32)
            cloud[:, :3] = raw[:, :3] @ transform[:3, :3].T + transform[:3, 3]
            cloud[:, 3] = raw[:, 3]
            cloud[:, 4] = 1e-6 * (newest["timestamp"] - record["timestamp"])
            clouds.append(cloud)
        return np.concatenate(clouds)

    def _view(
        self, record: Mapping[str, Any], to_global: np.ndarray, size: tuple[int, int] | None, read: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        height, width = size or (record["height"], record["width"])
        calibration = self.devkit.get("calibrated_sensor", record["calibrated_sensor_token"])
        intrinsic = np.array(calibration["camera_intrinsic"], dtype=np.float64)
        intrinsic[0] *= width / record["width"]
        intrinsic[1] *= height / record["height"]
        mount = transform_of(calibration)
        lens = np.eye(4)
        lens[:3, :3] = intrinsic
        projection = lens @ np.linalg.inv(mount) @ np.linalg.inv(self._pose(record)) @ to_global
        picture = read_picture(self.folder / record["filename"], (height, width)) if read else np.zeros(0)
        return picture, projection, mount, intrinsic


def missing_tables(folder: Path, version: str) -> list[str]:
    """Return the names of the table files that are not there."""
    return [f"{name}.json" for name in TABLES if not (folder / version / f"{name}.json").is_file()]


def _whole(path: Path) -> bool:
    """Say whether a file is there and, if it is a sweep, ends with a whole point."""
    return path.is_file() and not (path.suffix == ".bin" and bad_size(path.stat().st_size))
