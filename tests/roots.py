"""Small copies of data sets in their real formats, for tests of readers and of what runs on them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 320, 180
CATEGORIES = {  # category: colour of its boxes
    "vehicle.car": (200, 30, 30),
    "vehicle.truck": (30, 200, 30),
    "human.pedestrian.adult": (30, 30, 200),
    "human.pedestrian.child": (30, 30, 200),
    "vehicle.bus.bendy": (200, 200, 30),
    "animal": (90, 90, 90),
    "flat.driveable_surface": (10, 10, 10),
}


def token(*words: object) -> str:
    """Return 32 hex digits, as all records of the format have."""
    return hashlib.md5(repr(words).encode()).hexdigest()


def write_nuimages(folder: Path, pictures: int = 6) -> Path:
    """Write a copy with all ten tables and JPEG pictures; every box is filled with its category's colour."""
    for version in ("v1.0-train", "v1.0-val"):
        rng = np.random.default_rng(len(version))
        tables: dict[str, list[dict[str, Any]]] = {
            name: []
            for name in ("attribute", "ego_pose", "log", "sample", "sample_data", "object_ann", "surface_ann")
        }
        tables["category"] = [
            {"token": token(name), "name": name, "description": name} for name in CATEGORIES
        ]
        tables["sensor"] = [{"token": token("cam"), "channel": "CAM_FRONT", "modality": "camera"}]
        tables["calibrated_sensor"] = [
            {
                "token": token("calib"),
                "sensor_token": token("cam"),
                "translation": [1.7, 0.0, 1.5],
                "rotation": [0.5, -0.5, 0.5, -0.5],
                "camera_intrinsic": [[253.0, 0.0, 160.0], [0.0, 253.0, 90.0], [0.0, 0.0, 1.0]],
                "camera_distortion": [],
            }
        ]
        for k in range(pictures):
            name = f"samples/CAM_FRONT/{version}-{k}.jpg"
            key, sample = token(version, k), token(version, "sample", k)
            pixels = rng.integers(100, 140, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            boxes = [("vehicle.car", 60), ("vehicle.truck", 40), ("human.pedestrian.adult", 30)]
            boxes += [
                ("human.pedestrian.child", 10),
                ("animal", 50),
                ("vehicle.bus.bendy", 70 if k < 2 else 20),
            ]
            for n, (category, side) in enumerate(boxes):
                left, top = 50 * n + 15, int(rng.integers(0, HEIGHT - side))
                box = [left, top, left + side // 2, top + side]
                pixels[top : top + side, left : left + side // 2] = CATEGORIES[category]
                tables["object_ann"].append(
                    {
                        "token": token(version, k, n),
                        "category_token": token(category),
                        "bbox": box,
                        "mask": None,
                        "attribute_tokens": [],
                        "sample_data_token": key,
                    }
                )
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path, quality=95)
            tables["sample"].append(
                {"token": sample, "timestamp": k, "log_token": "", "key_camera_token": key}
            )
            tables["sample_data"].append(
                {
                    "token": key,
                    "sample_token": sample,
                    "ego_pose_token": "",
                    "calibrated_sensor_token": token("calib"),
                    "filename": name,
                    "fileformat": "jpg",
                    "width": WIDTH,
                    "height": HEIGHT,
                    "timestamp": k,
                    "is_key_frame": True,
                    "prev": "",
                    "next": "",
                }
            )
        (folder / version).mkdir()
        for table, records in tables.items():
            (folder / version / f"{table}.json").write_text(json.dumps(records))
    return folder
