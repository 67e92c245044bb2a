"""A generated nuScenes root with four drives of three frames, and one with a real frame."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from fedlib.data.nuscenes import CAMERAS, CARD, LIDAR, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives import tables
from fedlib.data.roadworld.drives.recording import Recipe

RECIPE = Recipe(frames=3, sweeps=1, image_size=(36, 64), beams=20, azimuths=180, reach=16.0, seed=0)
SCENES = {"train": {"A": 1, "E": 1}, "val": {"A": 1, "E": 1}}


@pytest.fixture(scope="session")
def generated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root as written; not to be changed."""
    folder = tmp_path_factory.mktemp("drives")
    drives.write(folder, scenes=SCENES, recipe=RECIPE, processes=1)
    return folder


@pytest.fixture(scope="session")
def generated(generated_folder: Path) -> DrivingSet:
    return DrivingSet(drives.NAME, generated_folder, drives.VERSION, drives.CARD)


@pytest.fixture
def opened(generated_folder: Path, tmp_path: Path) -> Callable[[], DrivingSet]:
    """Opens a copy of the generated root in ``tmp_path / "copy"``, which a test may damage."""
    shutil.copytree(generated_folder, tmp_path / "copy")
    return lambda: DrivingSet(drives.NAME, tmp_path / "copy", drives.VERSION, drives.CARD)


@pytest.fixture(scope="session")
def real(sample_data: Path, tmp_path_factory: pytest.TempPathFactory) -> DrivingSet:
    """A root that holds one key frame of nuScenes (scene-0061)."""
    source = sample_data / "nuscenes-scene0061"
    if not (source / "infos.json").is_file():
        pytest.skip("no nuScenes frame among the real samples")
    content = json.loads((source / "infos.json").read_text())
    root = tmp_path_factory.mktemp("nuscenes")
    write_real(root, source, content["metainfo"]["categories"], content["data_list"][0])
    return DrivingSet("nuscenes", root, "v1.0-mini", CARD)


def write_real(root: Path, source: Path, categories: dict[str, int], info: dict[str, Any]) -> None:
    """Put the tables back together from what the sample says about its frame."""
    records = tables.shared()
    token, stamp = info["token"], round(1e6 * info["timestamp"])
    pose = np.array(info["ego2global"])
    lidar = np.array(info["lidar_points"]["lidar2ego"])
    records["log"] = [{"token": "l", "logfile": "n015", "vehicle": "n015", "location": "singapore-onenorth"}]
    records["map"] = [
        {"token": "m", "log_tokens": ["l"], "category": "semantic_prior", "filename": "maps/m.png"}
    ]
    records["scene"] = [
        {
            "token": "s",
            "name": "scene-0061",
            "description": "Parked truck, construction, intersection",
            "log_token": "l",
            "nbr_samples": 1,
            "first_sample_token": token,
            "last_sample_token": token,
        }
    ]
    records["sample"] = [{"token": token, "timestamp": stamp, "scene_token": "s", "prev": "", "next": ""}]

    def sensor(channel: str, file: str, mount: np.ndarray, ego: np.ndarray, lens: Any, size: Any) -> None:
        suffix = "pcd.bin" if channel == LIDAR else "jpg"
        name = f"samples/{channel}/{channel}.{suffix}"
        (root / name).parent.mkdir(parents=True)
        shutil.copyfile(source / file, root / name)
        records["calibrated_sensor"].append(
            {"token": channel, "sensor_token": tables.token("sensor", channel), "camera_intrinsic": lens}
            | transform(mount)
        )
        records["ego_pose"].append({"token": channel, "timestamp": stamp} | transform(ego))
        records["sample_data"].append(
            {
                "token": channel,
                "sample_token": token,
                "ego_pose_token": channel,
                "calibrated_sensor_token": channel,
                "timestamp": stamp,
                "fileformat": suffix[:3],
                "is_key_frame": True,
                "height": size[0],
                "width": size[1],
                "filename": name,
                "prev": "",
                "next": "",
            }
        )

    sensor(LIDAR, info["lidar_points"]["lidar_path"], lidar, pose, [], (0, 0))
    for channel in CAMERAS:
        view = info["images"][channel]
        mount = np.array(view["cam2ego"])
        # where the car was when the camera fired follows from the transform between the two sensors
        ego = pose @ lidar @ np.linalg.inv(np.array(view["lidar2cam"])) @ np.linalg.inv(mount)
        sensor(channel, view["img_path"], mount, ego, view["cam2img"], (900, 1600))
    names = {number: name for name, number in categories.items()}
    annotated = [
        item for item in info["instances"] if item["bbox_label_3d"] in names
    ]  # others are not detected
    for number, item in enumerate(annotated):
        x, y, z, length, width, height, yaw = item["bbox_3d"]
        turned = Rotation.from_matrix((pose @ lidar)[:3, :3]) * Rotation.from_euler("z", yaw)
        records["instance"].append(
            {
                "token": f"i{number}",
                "category_token": tables.token("category", tables.CATEGORIES[names[item["bbox_label_3d"]]]),
                "nbr_annotations": 1,
                "first_annotation_token": f"a{number}",
                "last_annotation_token": f"a{number}",
            }
        )
        records["sample_annotation"].append(
            {
                "token": f"a{number}",
                "sample_token": token,
                "instance_token": f"i{number}",
                "visibility_token": "",
                "attribute_tokens": [],
                "translation": (pose @ lidar @ [x, y, z, 1])[:3].tolist(),
                "size": [width, length, height],
                "rotation": np.roll(turned.as_quat(), 1).tolist(),
                "num_lidar_pts": item["num_lidar_pts"],
                "num_radar_pts": item["num_radar_pts"],
                "prev": "",
                "next": "",
            }
        )
    (root / "maps").mkdir()
    Image.new("L", (1, 1)).save(root / "maps" / "m.png")
    (root / "v1.0-mini").mkdir()
    for name, table in records.items():
        (root / "v1.0-mini" / f"{name}.json").write_text(json.dumps(table))


def transform(matrix: np.ndarray) -> dict[str, list[float]]:
    return {
        "translation": matrix[:3, 3].tolist(),
        "rotation": np.roll(Rotation.from_matrix(matrix[:3, :3]).as_quat(), 1).tolist(),
    }
