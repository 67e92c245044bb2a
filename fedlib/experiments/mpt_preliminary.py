"""The preliminary study of MPT (Jang et al. 2026, section III)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.mpt_scenario import (
    LEAVING,
    Departure,
    bench_of,
    departures,
    scenario_config,
    scores,
    split_of,
    training_run,
)
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.features.embed import embed
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise
from fedlib.federation.model_state import State
from fedlib.models import module_of
from fedlib.runs import Run, RunSpec, Store, Workspace


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
    bench = bench_of(settings)
    jobs = departures(bench, settings)
    return Study.of(run_all(partial(_preliminary_run, bench, settings), jobs, settings.device))


def _preliminary_run(bench: Bench, settings: MPTSettings, job: Departure, workers: int | None) -> Run:
    config = scenario_config(settings, job)
    checksums = {settings.dataset: bench.images.card.checksum}

    def compute(workspace: Workspace) -> None:
        rows = [
            {"seed": job.seed, **row}
            for condition in ("departure", "no-departure")
            for row in _readouts(bench, settings, job, condition, workers)
        ]
        workspace.finish(pd.DataFrame(rows))

    spec = RunSpec("mpt.preliminary", config, checksums, (__name__, module_of(settings.model)))
    return Store().compute(spec, compute)


def _readouts(
    bench: Bench, settings: MPTSettings, job: Departure, condition: str, workers: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the metric rows of all readouts of one condition, round by round."""
    leaves = condition == "departure"
    rare, last = job.rare_class, settings.departure_round
    split = split_of(bench, settings, job)
    run = training_run(bench, settings, job, "holdout" if leaves else "stay", workers)
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

        def scored(predicted: Tensor, readout: str, distance: str, common: dict[str, Any] = common) -> Any:
            found = scores(test.labels, predicted.numpy(), rare, bench.num_classes)
            for metric in ("rare_f1", "rare_recall", "accuracy", "macro_f1"):
                value = found[metric]
                yield {**common, "readout": readout, "distance": distance, "metric": metric, "value": value}

        with torch.inference_mode():
            yield from scored(model.head(z_test).argmax(1), "head", "none")
        for readout, prototype in choices.items():
            yield from scored(MahalanobisNCM(prototype, sigma).predict(z_test), readout, "mahalanobis")
            yield from scored(EuclideanNCM(prototype).predict(z_test), readout, "euclidean")
            if gone and readout != "oracle":
                distance = MahalanobisNCM(oracle[None], sigma).distances(prototype[rare][None]).sqrt()
                error = {"metric": "prototype_error", "value": float(distance)}
                yield {**common, "readout": readout, "distance": "mahalanobis", **error}


def _with(means: Tensor, label: int, prototype: Tensor) -> Tensor:
    """Return ``means`` (C, d) with one row replaced."""
    return torch.cat([means[:label], prototype[None], means[label + 1 :]])
