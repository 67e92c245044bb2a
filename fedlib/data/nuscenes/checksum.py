"""The checksum of a root in nuScenes format."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedlib import files
from fedlib.data.nuscenes.root import TABLES


def tables_checksum(folder: Path, version: str) -> str:
    """Return the SHA-256 over a version's name and its tables, ``splits.json`` included where there is one.

    The tables name scenes, samples, annotations, poses and files. Pictures and sweeps are not read.

    Args:
        folder: the root.
        version: name of the folder of the tables.
    """
    digest = hashlib.sha256(version.encode())
    for path in sorted((folder / version / f"{name}.json" for name in (*TABLES, "splits")), key=str):
        if path.is_file():
            digest.update(f"\n{path.name} {files.sha256(path)}".encode())
    return digest.hexdigest()
