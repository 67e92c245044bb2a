"""The three image tasks: which classes, in which shares, how photographed; and making all pictures of one."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedlib import seeds
from fedlib.data import prepared
from fedlib.data.roadworld import cars, scenes
from fedlib.data.roadworld.world import Body

log = logging.getLogger(__name__)

_CHUNK = 64  # pictures a worker makes at a time


@dataclass(frozen=True)
class Task:
    """A classification task.

    Attributes:
        name: behind ``roadworld:``.
        title: for captions.
        rare: the class that plays the part of the paper's rare class.
        shares: share of each class, in the order of the labels.
        draw: draws a body of a class.
        view: how pictures are taken.
        about: what the classes are, for the card.
    """

    name: str
    title: str
    rare: str
    shares: Mapping[str, float]
    draw: Callable[[str, np.random.Generator], Body]
    view: scenes.View
    about: str


def _road_user(kind: str, rng: np.random.Generator) -> Body:
    return scenes.ROAD_USERS[kind](rng)


TASKS = {
    task.name: task
    for task in (
        Task(
            "objects",
            "Roadworld objects (generated)",
            "truck",
            {
                "car": 0.20,
                "truck": 0.12,
                "bus": 0.07,
                "trailer": 0.05,
                "construction_vehicle": 0.06,
                "pedestrian": 0.15,
                "motorcycle": 0.08,
                "bicycle": 0.07,
                "traffic_cone": 0.10,
                "barrier": 0.10,
            },
            _road_user,
            scenes.DRIVING,
            "Crops of road users in the ten nuScenes detection classes, seen from a car; stands in for nuImages.",
        ),
        Task(
            "coarse",
            "Roadworld body types (generated)",
            "van",
            {
                "sedan": 0.22,
                "hatchback": 0.15,
                "SUV": 0.20,
                "MPV": 0.12,
                "van": 0.12,
                "pickup": 0.09,
                "sports car": 0.10,
            },
            cars.of_type,
            scenes.PHOTOGRAPH,
            "Cars of seven body types, seen from the front quarter to the side; stands in for coarse Car-1000.",
        ),
        Task(
            "fine",
            "Roadworld sedans (generated)",
            "micro sedan",
            {
                "micro sedan": 0.15,
                "small sedan": 0.19,
                "mid-size sedan": 0.21,
                "executive sedan": 0.17,
                "long-wheelbase sedan": 0.14,
                "sport sedan": 0.14,
            },
            cars.sedan,
            scenes.PHOTOGRAPH,
            "Sedans that differ in proportions only, seen likewise; stands in for fine Car-1000.",
        ),
    )
}


def labels(task: Task, split: str, count: int, seed: int) -> np.ndarray:
    """Return the int64 labels (count,) of a split: the task's shares, rounded, in random order."""
    shares = np.array(list(task.shares.values()))
    exact = count * shares / shares.sum()
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: count - counts.sum()]] += 1
    return seeds.rng(seed, "roadworld", task.name, split, "order").permutation(
        np.repeat(np.arange(len(shares), dtype=np.int64), counts)
    )


def generate(task: Task, counts: Mapping[str, int], size: int, seed: int) -> dict[str, np.ndarray]:
    """Make all pictures of a task, in as many processes as there are cores (or ``FEDLIB_WORKERS``).

    Each picture has a random stream of its own, so that the number of processes changes nothing.

    Returns:
        ``<split>_images`` uint8 (N, size, size, 3) and ``<split>_labels`` int64 (N,).
    """
    arrays = {f"{split}_labels": labels(task, split, count, seed) for split, count in counts.items()}
    jobs = [
        (split, start, arrays[f"{split}_labels"][start : start + _CHUNK])
        for split, count in counts.items()
        for start in range(0, count, _CHUNK)
    ]
    make = partial(_pictures, task.name, size, seed)
    workers = min(prepared.workers(), len(jobs))
    log.info("roadworld:%s is generated, once (%d pictures)", task.name, sum(counts.values()))
    if workers == 1:
        made = list(map(make, jobs))
    else:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            made = list(pool.map(make, jobs))
    for split in counts:
        arrays[f"{split}_images"] = np.concatenate(
            [images for job, images in zip(jobs, made) if job[0] == split]
        )
    return arrays


def code_version() -> str:
    """Return a hash of this package's source, so that a change of the generator makes the pictures anew."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _pictures(name: str, size: int, seed: int, job: tuple[str, int, np.ndarray]) -> np.ndarray:
    split, start, numbers = job
    task = TASKS[name]
    classes = list(task.shares)
    images = np.empty((len(numbers), size, size, 3), dtype=np.uint8)
    for k, number in enumerate(numbers):
        rng = seeds.rng(seed, "roadworld", name, split, start + k)
        body = task.draw(classes[number], rng)
        images[k] = scenes.picture(body, task.view, size, seed, rng).image
    return images
