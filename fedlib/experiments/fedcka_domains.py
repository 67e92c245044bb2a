"""The five domains of driving scenes, counted and measured: what Table I of the FedCKA paper is about."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fedlib import data
from fedlib.data.nuscenes import CAMERAS, CLASSES, DOMAINS, SPLITS, DrivingSet, Frame, domain_of
from fedlib.data.nuscenes.domains import published
from fedlib.errors import choose
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.runs import RunSpec, Store, Workspace

#: Pairs of domains that differ in one condition only, and one that differs in all three.
STEPS = {
    "rain by day (A, B)": ("A", "B"),
    "city (A, C)": ("A", "C"),
    "night (C, D)": ("C", "D"),
    "rain by night (D, E)": ("D", "E"),
    "all three (A, E)": ("A", "E"),
}
LARGE_PICTURES: dict[str, dict[str, Any]] = {
    "roadworld-drives": {"preset": "tiny", "frames": 1, "sweeps": 0, "image_size": (112, 200)}
}
#: What is measured on each frame, in the order of the columns.
MEASURES = ("picture mean", "picture contrast", "points a sweep", "points a box")


def open_scenes(settings: FedCKASettings, **options: Any) -> DrivingSet:
    """Open the driving scenes of ``settings.for_scenes()``; ``options`` replace or add to those of the data set.

    Raises:
        InputError: no driving set, an unknown option, or files that are missing.
    """
    config = settings.for_scenes()
    driving: DrivingSet = data.driving(config.dataset, **config.dataset_options | options)
    return driving


def published_scenes() -> pd.DataFrame:
    """Return the number of nuScenes' scenes in each domain (rows) and split (columns), by our rule of derivation.

    Counted from the list of all 850 annotated scenes, which is in the package; no copy of nuScenes is needed.
    """
    rows = pd.DataFrame(published().values(), columns=["split", "domain"])
    return pd.crosstab(rows["domain"], rows["split"])[list(SPLITS)]


def domains(settings: FedCKASettings, frames: int = 16) -> Study:
    """Count the scenes, frames and boxes of each domain, and measure pictures and points on some frames.

    Columns: seed, domain, split, metric, value. Metrics by domain and split: ``scenes``, ``frames``,
    ``annotated/<class>`` and ``boxes/<class>`` (those with a LiDAR or radar point). By domain: ``train_scenes``,
    ``val_scenes``, ``absent_classes`` (without a box in the training and validation frames), ``samples``.
    Metrics of the whole, with domain and split empty: ``clients``, ``samples_outside_own_domain``,
    ``samples_per_scene``, ``motorcycle_ratio`` (Singapore over Boston, annotated boxes a training scene; absent
    if Boston has none), ``car_ratio`` (Boston over Singapore), ``rounds``, ``local_epochs``. By training frame:
    ``MEASURES``.

    Args:
        settings: of the paper's experiments.
        frames: how many training frames of each domain are read, evenly spread.

    Raises:
        InputError: no driving set, files that are missing, or a domain without scenes.
    """
    config = settings.for_scenes()
    driving = open_scenes(settings)
    stored = {
        "dataset": config.dataset, "dataset_options": config.dataset_options, "frames": frames,
        "rounds": config.rounds, "local_epochs": config.local_epochs,
    }  # fmt: skip

    def compute(workspace: Workspace) -> None:
        counts = pd.concat([_counts(driving, letter, split) for letter in DOMAINS for split in SPLITS])
        whole = pd.DataFrame(
            [*_whole(driving, counts), ("rounds", config.rounds), ("local_epochs", config.local_epochs)],
            columns=["metric", "value"],
        )
        measured = pd.concat([_measured(driving, letter, frames) for letter in DOMAINS])
        rows = pd.concat([counts, _by_domain(counts), whole, measured], ignore_index=True)
        workspace.finish(rows.assign(seed=0, value=rows["value"].astype(float)))

    checksums = {config.dataset: driving.card.checksum}
    run = Store().compute(RunSpec("fedcka.domains", stored, checksums, (__name__,)), compute)
    return Study.of([run])


def claim_rows(study: Study, *metrics: str) -> pd.DataFrame:
    """Return the rows of these metrics without the columns that are empty in all of them."""
    rows: pd.DataFrame = study.select(metric=list(metrics)).dropna(axis=1, how="all")
    return rows.drop(columns="split", errors="ignore")


def class_mix(study: Study) -> pd.DataFrame:
    """Return annotated boxes a training frame, by class (rows, devkit's order) and domain (columns)."""
    rows = study.select(split="train")
    names = [f"annotated/{name}" for name in CLASSES]
    table = rows[rows["metric"].isin(names)].pivot(index="metric", columns="domain", values="value")
    frames = rows[rows["metric"] == "frames"].set_index("domain")["value"]
    mix = (table.loc[names] / frames).set_axis([name.replace("_", " ") for name in CLASSES])
    return mix.rename_axis(index="class", columns="domain")


def distances(study: Study) -> pd.DataFrame:
    """Return how far pairs of domains are apart: rows ``STEPS``, columns ``MEASURES`` and ``class mix``.

    A measure's distance is the difference of its means in units of the standard deviation within the two
    domains (Cohen's d; the sign says whether it grows from the first to the second). The distance of class mixes
    is half of the sum of absolute differences of the classes' shares: 0 the same, 1 nothing in common.
    """
    shares = class_mix(study)
    shares = shares / shares.sum()
    rows = {}
    for name, (first, second) in STEPS.items():
        row = {}
        for measure in MEASURES:
            values = study.select(metric=measure)
            a, b = (values.loc[values["domain"] == letter, "value"] for letter in (first, second))
            spread = np.sqrt((a.var() + b.var()) / 2)
            row[measure] = float((b.mean() - a.mean()) / spread)
        row["class mix"] = float((shares[first] - shares[second]).abs().sum() / 2)
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("what differs")


def showcase(settings: FedCKASettings, camera: str = "CAM_FRONT") -> dict[str, Frame]:
    """Return one frame of each domain, by letter: the first of those in which a camera sees most boxes.

    A box counts if it has a point and its middle lies in the picture, from 3 to 30 metres ahead. Generated scenes
    are made anew with larger pictures than the detector takes; of each domain 40 frames are looked at, at most.

    Args:
        settings: of the paper's experiments.
        camera: one of ``CAMERAS``.

    Raises:
        InputError: unknown camera, no driving set, or files that are missing.
    """
    choose("camera", camera, CAMERAS)
    driving = open_scenes(settings, **LARGE_PICTURES.get(settings.for_scenes().dataset, {}))
    found = {}
    for letter in DOMAINS:
        tokens = [token for s in driving.scenes.values() if s.domain == letter for token in s.samples]
        if tokens:
            some = [tokens[k] for k in np.unique(np.linspace(0, len(tokens) - 1, 40).astype(int))]
            found[letter] = max(
                (driving.frame(token, sweeps=1) for token in some), key=partial(in_view, camera)
            )
    return found


def in_view(camera: str, frame: Frame) -> int:
    """Return how many boxes with a point have their middle in a camera's picture, 3 to 30 metres ahead."""
    view = CAMERAS.index(camera)
    middles = frame.labels.boxes[frame.labels.num_points > 0, :3]
    u, v, depth = (middles @ frame.projections[view, :3, :3].T + frame.projections[view, :3, 3]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        column, row = u / depth, v / depth
    height, width = frame.images.shape[1:3]
    inside = (column > 0) & (column < width) & (row > 0) & (row < height)
    return int((inside & (depth > 3) & (depth < 30)).sum())


def _counts(driving: DrivingSet, letter: str, split: str) -> pd.DataFrame:
    tokens = driving.samples(letter, split)
    annotated, seen = np.zeros(len(CLASSES), int), np.zeros(len(CLASSES), int)
    for token in tokens:
        labels = driving.labels(token)
        annotated += np.bincount(labels.classes, minlength=len(CLASSES))
        seen += np.bincount(labels.classes[labels.num_points > 0], minlength=len(CLASSES))
    rows = [("scenes", driving.counts()[letter][split]), ("frames", len(tokens))]
    rows += [(f"annotated/{name}", number) for name, number in zip(CLASSES, annotated, strict=True)]
    rows += [(f"boxes/{name}", number) for name, number in zip(CLASSES, seen, strict=True)]
    return pd.DataFrame(rows, columns=["metric", "value"]).assign(domain=letter, split=split)


def _by_domain(counts: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for letter, group in counts.groupby("domain"):
        scenes = group[group["metric"] == "scenes"].set_index("split")["value"]
        boxes = group[group["metric"].str.startswith("boxes/")].groupby("metric")["value"].sum()
        rows += [
            (letter, "train_scenes", scenes["train"]),
            (letter, "val_scenes", scenes["val"]),
            (letter, "absent_classes", int((boxes == 0).sum())),
        ]
    return pd.DataFrame(rows, columns=["domain", "metric", "value"])


def _whole(driving: DrivingSet, counts: pd.DataFrame) -> list[tuple[str, float]]:
    database = driving.devkit
    places = {
        record["name"]: (database.get("log", record["log_token"])["location"], record["description"])
        for record in database.scene
    }
    outside = sum(
        len(scene.samples) for scene in driving.scenes.values()
        if scene.split in SPLITS and domain_of(*places[scene.name]) != scene.domain
    )  # fmt: skip
    total = counts.groupby("metric")["value"].sum()
    train = counts[counts["split"] == "train"]
    cities = train.assign(city=[DOMAINS[letter].city for letter in train["domain"]])
    table = cities.groupby(["metric", "city"])["value"].sum()
    found = [
        ("clients", float(train["domain"].nunique())),
        ("samples_outside_own_domain", float(outside)),
        ("samples_per_scene", float(total["frames"] / total["scenes"])),
    ]
    for kind, over, under in (("motorcycle", "singapore", "boston"), ("car", "boston", "singapore")):
        each = {city: table[f"annotated/{kind}", city] / table["scenes", city] for city in (over, under)}
        if each[under]:  # without any there is no ratio
            found.append((f"{kind}_ratio", float(each[over] / each[under])))
    return found


def _measured(driving: DrivingSet, letter: str, frames: int) -> pd.DataFrame:
    tokens = driving.samples(letter, "train")
    chosen = np.unique(np.linspace(0, len(tokens) - 1, frames).astype(int))
    rows = []
    for number in chosen:
        frame = driving.frame(tokens[number], sweeps=1)
        grey = frame.images.mean(axis=3)  # (V, H, W)
        inside = frame.labels.num_points[frame.labels.num_points > 0]
        middle = np.median(inside) if len(inside) else 0.0
        values = (grey.mean(), grey.std(axis=(1, 2)).mean(), len(frame.points), middle)
        rows += list(zip(MEASURES, values, strict=True))
    return pd.DataFrame(rows, columns=["metric", "value"]).assign(domain=letter, split="frame")
