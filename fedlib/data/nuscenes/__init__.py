"""``nuscenes``: driving scenes with LiDAR, six cameras and 3D boxes, in the five domains of FedCKA.

The copy is read by nuscenes-devkit: the tables in ``v1.0-trainval`` (or ``v1.0-mini``), ``samples``, ``sweeps``
and ``maps``, in the data folder or in ``nuscenes`` below it. Domains follow from locations and descriptions
(``domains``), frames are arrays (``frame``), and :class:`DrivingSet` (``root``) is the door to both. A generated
root of the same format is ``fedlib.data.roadworld.drives``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedlib.data.files import Found
from fedlib.data.imageset import Card
from fedlib.data.nuscenes.checksum import tables_checksum
from fedlib.data.nuscenes.domains import DOMAINS, SPLITS, WARM, Domain, check_published, domain_of
from fedlib.data.nuscenes.frame import (
    ATTRIBUTES,
    BOX,
    CAMERAS,
    CLASSES,
    LIDAR,
    Frame,
    Labels,
    corners,
    moved,
)
from fedlib.data.nuscenes.root import TABLES, VERSIONS, DrivingSet, Scene, missing_tables
from fedlib.errors import InputError, choose

__all__ = [
    "ATTRIBUTES",
    "BOX",
    "CAMERAS",
    "CARD",
    "CLASSES",
    "DOMAINS",
    "LIDAR",
    "NAME",
    "SPLITS",
    "TABLES",
    "VERSIONS",
    "WARM",
    "Domain",
    "DrivingSet",
    "Frame",
    "Labels",
    "Scene",
    "check_published",
    "corners",
    "domain_of",
    "find",
    "load",
    "missing_tables",
    "moved",
    "tables_checksum",
]

NAME = "nuscenes"
CARD = Card(
    name=NAME,
    title="nuScenes (3D detection, five domains)",
    kind="real",
    source="nuScenes, https://www.nuscenes.org (registration)",
    licence="CC BY-NC-SA 4.0 with the nuScenes terms of use; free for non-commercial use",
    citation="H. Caesar, V. Bankiti, A. H. Lang, S. Vora, V. E. Liong, Q. Xu, A. Krishnan, Y. Pan, G. Baldan, "
    "O. Beijbom. nuScenes: A multimodal dataset for autonomous driving. CVPR, 2020.",
    notes=(
        "Domains: A Boston day dry, B Boston day rain, C Singapore day dry, D Singapore night dry, E Singapore "
        'night rain; from the location of the log and the words "night" and "rain" of the description.',
        "Official training and validation splits; radar is not used.",
    ),
)


def load(*, root: Path, download: bool, version: str | None = None) -> DrivingSet:
    """Open a copy of nuScenes. The card's checksum is of the tables; they are parsed when they are first needed.

    Args:
        root: folder that holds the copy, or whose subfolder ``nuscenes`` does.
        download: without effect; nuScenes needs a registration.
        version: folder of the tables, one of ``VERSIONS``; None takes the first that is there.

    Raises:
        InputError: no copy, or a table is missing.
    """
    found = find(root=root, version=version)
    if found.where is None:
        raise InputError(f"{NAME} is not in {root}. {found.what_to_do}")
    there = version or next(name for name in VERSIONS if (found.where / name).is_dir())
    card = dataclasses.replace(CARD, checksum=tables_checksum(found.where, there))
    return DrivingSet(NAME, found.where, there, card)


def find(*, root: Path, version: str | None = None) -> Found:
    """Look for a folder of tables.

    Raises:
        InputError: unknown version.
    """
    wanted = VERSIONS if version is None else (choose("version", version, VERSIONS),)
    for folder in (root / NAME, root):
        if any((folder / name).is_dir() for name in wanted):
            return Found(NAME, present=True, where=folder, what_to_do="")
    what = (
        "Register at https://www.nuscenes.org/nuscenes, fetch the metadata and the whole file blobs (training "
        "joins LiDAR sweeps between the key frames, which the keyframe blobs lack), and unpack them in "
        f"{root / NAME}, so that it holds {wanted[0]}, samples, sweeps and maps; then run "
        "data_scripts/nuscenes_copy.py"
    )
    return Found(NAME, present=False, where=None, what_to_do=what)
