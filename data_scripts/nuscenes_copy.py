"""nuScenes (Caesar et al., 2020): 850 annotated driving scenes of 20 seconds with LiDAR and six cameras.

Source: https://www.nuscenes.org/nuscenes (registration; v1.0-trainval is about 300 GB, v1.0-mini 4 GB). Licence:
CC BY-NC-SA 4.0 with the nuScenes terms of use. Unpack metadata, file blobs and maps in <data folder>/nuscenes
(FEDLIB_DATA). The blobs of key frames alone lack the LiDAR sweeps between them, which training joins:

    <data folder>/nuscenes/v1.0-trainval/*.json, samples/CAM_.../*.jpg, samples/LIDAR_TOP/*.pcd.bin,
    sweeps/LIDAR_TOP/*.pcd.bin, maps/*.png

    python data_scripts/nuscenes_copy.py                         check the copy, say what is missing
    python data_scripts/nuscenes_copy.py --version v1.0-mini     the ten scenes to start with
    python data_scripts/nuscenes_copy.py --sweeps 2              for the profiles that join two LiDAR sweeps
    python data_scripts/nuscenes_copy.py --generated tiny        make and describe the surrogate instead

The file is not called nuscenes.py, because it would then hide the package of that name from itself.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fedlib import data, paths
from fedlib.data import nuscenes
from fedlib.data.nuscenes.statistics import statistics
from fedlib.errors import InputError


def main(
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
    version: Annotated[
        str | None, typer.Option(help="folder of the tables; the first found if not given")
    ] = None,
    sweeps: Annotated[
        int, typer.Option(min=1, max=10, help="LiDAR sweeps to a frame, the key frame's own included")
    ] = 5,
    generated: Annotated[str, typer.Option(help="preset of roadworld-drives to make instead")] = "",
) -> None:
    """Check a copy of nuScenes, or make the generated root."""
    try:
        if generated:
            driving = data.driving("roadworld-drives", preset=generated)
        else:
            found = data.find("nuscenes", root=root, **({"version": version} if version else {}))
            if found.where is None:
                raise InputError(f"nuscenes is not in {root or paths.data_root()}. {found.what_to_do}")
            driving = data.driving("nuscenes", root=root, **({"version": version} if version else {}))
        missing = _missing(driving, sweeps)
        if missing:
            raise InputError("\n".join(missing))
        _describe(driving, sweeps)
    except InputError as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from error


def _missing(driving: nuscenes.DrivingSet, sweeps: int) -> list[str]:
    """Say which files of the annotated key frames and of the sweeps before them are absent or truncated."""
    tokens = [token for scene in driving.scenes.values() for token in scene.samples]
    if driving.version == nuscenes.VERSIONS[0]:
        nuscenes.check_published({name: s.domain for name, s in driving.scenes.items()}, strict_counts=True)
    needed = Counter(path.parent for path in driving.files(tokens, sweeps=sweeps))
    by_folder: dict[Path, list[Path]] = {}
    for path in driving.missing_files(tokens, sweeps=sweeps):
        by_folder.setdefault(path.parent, []).append(path)
    return [
        f"{folder.relative_to(driving.folder)}: {len(files):,} of {needed[folder]:,} files missing or truncated "
        f"(first: {files[0]}); unpack the {_blobs(folder)} again"
        for folder, files in by_folder.items()
    ]


def _blobs(folder: Path) -> str:
    return "keyframe blobs" if folder.parent.name == "samples" else "blobs of sweeps (the full file blobs)"


def _describe(driving: nuscenes.DrivingSet, sweeps: int) -> None:
    card = driving.card
    typer.echo(f"{card.title}: in order")
    typer.echo(f"  files     {driving.folder}")
    typer.echo(f"  tables    {driving.version}, {len(driving.scenes):,} scenes")
    typer.echo(f"  sensors   every file of frames with {sweeps} LiDAR sweep{'s' if sweeps > 1 else ''}")
    typer.echo(f"  source    {card.source}")
    typer.echo(f"  licence   {card.licence}")
    typer.echo(f"  cite      {card.citation}")
    for split in nuscenes.SPLITS:
        for item in statistics(driving, split):
            boxes = sum(item.boxes.values()) / item.frames
            typer.echo(
                f"  {item.domain} {split:6s} {item.scenes:4d} scenes, {item.frames:6,} frames, {boxes:5.1f} boxes "
                f"and {item.points:7,.0f} points a frame, brightness {item.brightness:3.0f}, "
                f"absent: {', '.join(item.absent) or 'none'}"
            )
    for note in card.notes:
        typer.echo(f"  note      {note}")


if __name__ == "__main__":
    typer.run(main)
