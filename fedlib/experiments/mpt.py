"""Experiments of the MPT part (Jang et al. 2026)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib.data import partition as partitions
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.features.embed import embed
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise
from fedlib.federation.engine import one_thread
from fedlib.federation.model_state import State
from fedlib.federation.tasks import classification_scores
from fedlib.runs import Run, RunSpec, Store, Workspace

LEAVING = (
    0  # id of the vehicle that holds most samples of the rare class, see fedlib.data.partition.departure
)


@dataclass(frozen=True)
class Departure:
    """One repetition of the paper's scenario.

    Attributes:
        seed: of the repetition.
        rare_class: class that the leaving vehicle dominates.
        remaining: share of its samples that the other vehicles hold.
    """

    seed: int
    rare_class: int
    remaining: float


def preliminary(settings: MPTSettings) -> Study:
    """Run the preliminary study (section III): one run for each seed, rare class and remaining fraction.

    Each run's metrics have the columns seed, round, condition (departure | no-departure), rare_class, remaining,
    phase (before | after), readout, distance (mahalanobis | euclidean; none for the head), metric and value.
    Readouts: ``head`` (the trained classifier) and ``ncm`` (class means of all samples of the vehicles present);
    after the departure ``remaining`` (the same means: the rare one from the few samples that remain), ``frozen``
    (the rare prototype of the departure) and ``oracle`` (the rare mean over all its training samples, the
    departed ones included, under the current backbone). Metrics: rare_f1, rare_recall, accuracy, macro_f1, and
    prototype_error, the Mahalanobis distance of a rare prototype to the oracle.

    Raises:
        InputError: a rare class that the data set has not, or data that are not found.
    """
    bench = Bench.of(settings)
    jobs = [
        Departure(seed, rare_class, remaining)
        for seed in range(settings.seeds)
        for rare_class in settings.rare_classes
        for remaining in settings.remaining_fractions
    ]
    for job in jobs:  # all inputs are checked before anything is computed
        partitions.departure(
            bench.labels, settings.num_clients, job.rare_class, job.remaining, job.seed, settings.alpha
        )
    return Study.of(run_all(partial(_preliminary_run, bench, settings), jobs, settings.device))


def _preliminary_run(bench: Bench, settings: MPTSettings, job: Departure, workers: int | None) -> Run:
    config: dict[str, Any] = settings.model_dump(
        mode="json", exclude={"profile", "seeds", "rare_classes", "remaining_fractions"}
    )
    config |= {"seed": job.seed, "rare_class": job.rare_class, "remaining": job.remaining}
    checksums = {settings.dataset: bench.images.card.checksum}

    def compute(workspace: Workspace) -> None:
        with one_thread():
            rows = [
                {"seed": job.seed, **row}
                for condition in ("departure", "no-departure")
                for row in _readouts(bench, settings, job, condition, workers)
            ]
        workspace.finish(pd.DataFrame(rows))

    spec = RunSpec("mpt.preliminary", config, checksums, (__name__, f"fedlib.models.{settings.model}"))
    return Store().compute(spec, compute)


def _readouts(
    bench: Bench, settings: MPTSettings, job: Departure, condition: str, workers: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the metric rows of all readouts of one condition, round by round."""
    leaves = condition == "departure"
    rare, last = job.rare_class, settings.departure_round
    split = partitions.departure(
        bench.labels, settings.num_clients, rare, job.remaining, job.seed, settings.alpha
    )
    run = bench.train(
        bench.method(),
        split,
        job.seed,
        leaves={LEAVING: last} if leaves else {},
        # The few samples that remain are held out of training after the departure, section IV-C-2.
        held_out=np.flatnonzero(bench.labels == rare) if leaves else None,
        held_out_after=last,
        workers=workers,
    )
    trajectory = trajectory_of(run)
    train, test = bench.part("train"), bench.part("test")
    train_images, test_images = (bench.normalizer.apply(part.images) for part in (train, test))
    labels, rare_samples = torch.tensor(train.labels), torch.tensor(train.labels == rare)
    staying = torch.ones(len(train), dtype=torch.bool)
    staying[torch.tensor(split.clients[LEAVING])] = False
    model = bench.build_model(job.seed)
    frozen: Tensor | None = None  # the rare prototype of the departure
    for round in trajectory.rounds[1:]:
        weights: State = trajectory.weights(round)
        model.load_state_dict(weights)
        z, z_test = embed(model, train_images), embed(model, test_images)  # (N, d), (N_test, d)
        after = round > last
        gone = after and leaves
        present = staying if gone else torch.ones_like(staying)
        moments = ClassMoments(bench.num_classes, model.feature_dim, leave_out=(rare,) if gone else ())
        moments.update(z[present], labels[present])
        means, sigma = prototypes(moments), regularise(moments.covariance(), settings.rho)
        choices = {"ncm": means}
        if round == last:
            frozen = means[rare].clone()
        if gone:
            assert frozen is not None
            oracle = z[rare_samples].double().mean(0)
            choices = {
                "remaining": means,
                "frozen": _with(means, rare, frozen),
                "oracle": _with(means, rare, oracle),
            }
        common = {
            "round": round,
            "condition": condition,
            "rare_class": rare,
            "remaining": job.remaining,
            "phase": "after" if after else "before",
        }

        def scores(predicted: Tensor, readout: str, distance: str, common: dict[str, Any] = common) -> Any:
            found = classification_scores(test.labels, predicted.numpy(), bench.num_classes)
            values = {
                "rare_f1": found[f"f1_{rare}"],
                "rare_recall": found[f"recall_{rare}"],
                "accuracy": found["accuracy"],
                "macro_f1": found["macro_f1"],
            }
            for metric, value in values.items():
                yield {**common, "readout": readout, "distance": distance, "metric": metric, "value": value}

        with torch.inference_mode():
            yield from scores(model.head(z_test).argmax(1), "head", "none")
        for readout, prototype in choices.items():
            yield from scores(MahalanobisNCM(prototype, sigma).predict(z_test), readout, "mahalanobis")
            yield from scores(EuclideanNCM(prototype).predict(z_test), readout, "euclidean")
            if gone and readout != "oracle":
                distance = MahalanobisNCM(oracle[None], sigma).distances(prototype[rare][None]).sqrt()
                error = {"metric": "prototype_error", "value": float(distance)}
                yield {**common, "readout": readout, "distance": "mahalanobis", **error}


def _with(means: Tensor, label: int, prototype: Tensor) -> Tensor:
    """Return ``means`` (C, d) with one row replaced."""
    return torch.cat([means[:label], prototype[None], means[label + 1 :]])
