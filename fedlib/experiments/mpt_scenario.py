"""The scenario that all MPT experiments share: one vehicle with most samples of a class leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedlib import data, seeds
from fedlib.data import ImageSet, Partition
from fedlib.data import partition as partitions
from fedlib.data.imageset import Split
from fedlib.errors import InputError, choose
from fedlib.experiments.federated import Bench
from fedlib.experiments.settings import MPTSettings
from fedlib.methods.mpt.baselines.icarl import Distillation
from fedlib.runs import Run

LEAVING = 0  # id of the vehicle that holds most samples of the rare class, see partition.departure
TRAININGS = ("holdout", "train", "distil", "stay")


@dataclass(frozen=True)
class Departure:
    """One repetition of the paper's scenario.

    Attributes:
        seed: of the repetition.
        rare_class: label of the class that the leaving vehicle dominates.
        remaining: share of its samples that the other vehicles hold.
    """

    seed: int
    rare_class: int
    remaining: float


def bench_of(settings: MPTSettings) -> Bench:
    """Load the data set of ``settings``, with its options and its noise.

    Raises:
        InputError: unknown option, or as ``Bench.of``.
    """
    images = data.load(settings.dataset, **settings.dataset_options)
    return Bench.of(settings, add_noise(images, settings.pixel_noise))


def add_noise(images: ImageSet, level: float) -> ImageSet:
    """Return the images with normal noise, clipped to 0..255; the same noise in every run.

    Args:
        images: any data set.
        level: standard deviation relative to that of the training pixels; 0 returns the set itself.
    """
    if level == 0:
        return images
    scale = level * float(images.splits["train"].images.std())
    splits = {}
    for key, split in images.splits.items():
        noise = seeds.rng(0, "pixel-noise", key).normal(0, scale, split.images.shape)
        noisy = np.clip(np.rint(split.images + noise), 0, 255).astype(np.uint8)
        splits[key] = Split(noisy, split.labels)
    return ImageSet(images.name, splits, images.class_names, images.card)


def label_of(bench: Bench, rare_class: int | str) -> int:
    """Return the label of a class given by label or name.

    Raises:
        InputError: the data set has no such class.
    """
    names = bench.images.class_names
    if isinstance(rare_class, str):
        return names.index(choose("rare class", rare_class, names))
    if rare_class >= len(names):
        raise InputError(f"rare_class is {rare_class}; {bench.images.name} has labels 0 to {len(names) - 1}")
    return rare_class


def departures(bench: Bench, settings: MPTSettings) -> list[Departure]:
    """Return one departure for each seed, rare class and remaining fraction of ``settings``.

    Raises:
        InputError: a class or fraction that the data cannot give; all are checked here, before any is computed.
    """
    jobs = [
        Departure(seed, label_of(bench, rare_class), remaining)
        for seed in range(settings.seeds)
        for rare_class in settings.rare_classes
        for remaining in settings.remaining_fractions
    ]
    for job in jobs:
        split_of(bench, settings, job)
    return jobs


def split_of(bench: Bench, settings: MPTSettings, job: Departure) -> Partition:
    """Return which vehicle holds which training sample."""
    return partitions.departure(
        bench.labels, settings.num_clients, job.rare_class, job.remaining, job.seed, settings.alpha
    )


def scenario_config(settings: MPTSettings, job: Departure) -> dict[str, Any]:
    """Return what decides the backbones of a departure, for the key of a run."""
    names = {
        "dataset", "dataset_options", "pixel_noise", "model", "num_clients", "rounds", "local_epochs",
        "batch_size", "lr", "momentum", "weight_decay", "optimizer", "alpha", "bf16", "device", "departure_round",
        "rho",
    }  # fmt: skip
    config: dict[str, Any] = settings.model_dump(mode="json", include=names)
    return config | {"seed": job.seed, "rare_class": job.rare_class, "remaining": job.remaining}


def training_run(
    bench: Bench, settings: MPTSettings, job: Departure, training: str, workers: int | None
) -> Run:
    """Return the training of a departure, computed or from the store; ``trajectory_of`` opens its trajectory.

    Args:
        bench: the data.
        settings: of the experiment.
        job: which departure.
        training: ``holdout``: vehicle 0 leaves, and the few samples that remain are not trained on (section
            IV-C-2); ``train``: it leaves and they are; ``distil``: the same with iCaRL's distillation; ``stay``:
            nobody leaves. Seeds, partition and order of batches are the same in all of them.
        workers: processes.
    """
    choose("training", training, TRAININGS)
    leaves, last = training != "stay", settings.departure_round
    method = bench.method(Distillation, departure=last) if training == "distil" else bench.method()
    return bench.train(
        method,
        split_of(bench, settings, job),
        job.seed,
        leaves={LEAVING: last} if leaves else {},
        held_out=np.flatnonzero(bench.labels == job.rare_class) if training == "holdout" else None,
        held_out_after=last,
        common=0 if training == "distil" else shared_rounds(settings),
        workers=workers,
    )


def shared_rounds(settings: MPTSettings) -> int:
    """Return how many first rounds the trainings of a departure take over from one stored run.

    None where backbones are not kept: that run would stay, with the model of each of its rounds.
    """
    return settings.departure_round if settings.keep_backbones else 0


def scores(labels: np.ndarray, predicted: np.ndarray, rare: int, num_classes: int) -> dict[str, float]:
    """Return F1, precision and recall of the rare class, accuracy and macro-F1; 0 where undefined.

    Args:
        labels: (N,) int64.
        predicted: (N,) int64.
        rare: the class.
        num_classes: C.
    """
    hit = np.bincount(labels[labels == predicted], minlength=num_classes).astype(float)
    true = np.bincount(labels, minlength=num_classes)
    said = np.bincount(predicted, minlength=num_classes)
    f1 = 2 * hit / np.maximum(true + said, 1)
    return {
        "rare_f1": float(f1[rare]),
        "rare_precision": float(hit[rare] / max(1, said[rare])),
        "rare_recall": float(hit[rare] / max(1, true[rare])),
        "accuracy": float(hit.sum() / len(labels)),
        "macro_f1": float(f1[(true + said) > 0].mean()),
    }


def constant_answers(settings: MPTSettings) -> pd.DataFrame:
    """Return what readouts that always give the same answer reach on the test set of each task.

    Rows: tasks; columns: ``accuracy`` of the largest class, ``rare_f1`` of the rare class (recall 1, and its
    share p as precision: 2 p / (1 + p)), the mean over rare classes.
    """
    rows = {}
    for task in settings.tasks:
        own = settings.for_task(task)
        bench = bench_of(own)
        shares = np.bincount(bench.part("test").labels, minlength=bench.num_classes) / len(bench.part("test"))
        rare = np.array([shares[label_of(bench, name)] for name in own.rare_classes])
        rows[task] = {"accuracy": float(shares.max()), "rare_f1": float((2 * rare / (1 + rare)).mean())}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("task")
