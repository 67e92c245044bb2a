"""Experiments of the foundations chapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedlib import models
from fedlib.data import Partition
from fedlib.data import partition as partitions
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import FoundationsSettings
from fedlib.experiments.study import Study
from fedlib.features.embed import embed
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise
from fedlib.federation.tasks import classification_scores
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.federated.fedprox import FedProx
from fedlib.runs import Run, RunSpec, Store, Workspace


@dataclass(frozen=True)
class Variant:
    """One curve: a method, a partition and who takes part.

    Attributes:
        label: values of the condition columns.
        method: the method's class.
        options: what it changes in the local training.
        split: partition of the training labels for a seed.
        participation: share of the clients in a round.
    """

    label: Mapping[str, object]
    split: Callable[[np.ndarray, int], Partition]
    method: type[FedAvg] = FedAvg
    options: Mapping[str, Any] = field(default_factory=dict)
    participation: float = 1.0


def averaging(settings: FoundationsSettings) -> Study:
    """Compare FedAvg with training in one place, with more local epochs and with partial participation.

    Data are IID. Condition column: ``variant``; others: seed, round, client (-1: the server), split, metric and
    value.
    """
    iid = partial(_split_iid, settings.num_clients)
    return _compare(
        settings,
        [
            Variant({"variant": "all data in one place"}, partial(_split_iid, 1)),
            Variant({"variant": "FedAvg, 1 local epoch"}, iid, options={"local_epochs": 1}),
            Variant({"variant": "FedAvg, 5 local epochs"}, iid, options={"local_epochs": 5}),
            Variant(
                {"variant": "FedAvg, 3 of 10 clients a round"},
                iid,
                options={"local_epochs": 1},
                participation=0.3,
            ),
        ],
    )


def heterogeneity(settings: FoundationsSettings, alphas: Sequence[float]) -> Study:
    """Compare FedAvg and FedProx on partitions of growing skew.

    Condition columns: ``alpha`` (concentration of the Dirichlet partition) and ``method``.
    """
    variants = []
    for alpha in alphas:
        split = partial(_split_dirichlet, settings.num_clients, float(alpha))
        variants.append(
            Variant({"alpha": float(alpha), "method": "FedAvg"}, split, participation=settings.participation)
        )
        prox = {"mu": settings.mu}
        variants.append(
            Variant(
                {"alpha": float(alpha), "method": "FedProx"}, split, FedProx, prox, settings.participation
            )
        )
    return _compare(settings, variants)


def readouts(settings: FoundationsSettings) -> Study:
    """Compare three readouts of one federated backbone, round by round.

    The statistics of the class means are computed at each client and merged at the server. Columns: seed, round,
    readout (head | euclidean | mahalanobis), metric (accuracy, macro_f1), value.
    """
    bench = Bench.of(settings)
    seeds = list(range(settings.seeds))
    return Study.of(run_all(partial(_readout_run, bench, settings), seeds, settings.device))


def label_counts(settings: FoundationsSettings, alpha: float, seed: int = 0) -> pd.DataFrame:
    """Return how many training samples of each class (columns) each client (rows) holds."""
    bench = Bench.of(settings)
    split = _split_dirichlet(settings.num_clients, float(alpha), bench.labels, seed)
    counts = split.class_counts(bench.labels, bench.num_classes)
    return pd.DataFrame(counts, columns=list(bench.images.class_names)).rename_axis(
        index="client", columns="class"
    )


def _split_iid(num_clients: int, labels: np.ndarray, seed: int) -> Partition:
    return partitions.iid(labels, num_clients, seed)


def _split_dirichlet(num_clients: int, alpha: float, labels: np.ndarray, seed: int) -> Partition:
    return partitions.dirichlet(labels, num_clients, alpha, seed)


def _compare(settings: FoundationsSettings, variants: Sequence[Variant]) -> Study:
    bench = Bench.of(settings)
    jobs = [(variant, seed) for variant in variants for seed in range(settings.seeds)]
    for variant, seed in jobs:  # a partition that is not possible is refused before anything is computed
        variant.split(bench.labels, seed)
    runs = run_all(partial(_variant_run, bench), jobs, settings.device)
    return Study.of(runs, [variant.label for variant, _ in jobs])


def _variant_run(bench: Bench, job: tuple[Variant, int], workers: int | None) -> Run:
    variant, seed = job
    return bench.train(
        bench.method(variant.method, **variant.options),
        variant.split(bench.labels, seed),
        seed,
        participation=variant.participation,
        workers=workers,
    )


def _readout_run(bench: Bench, settings: FoundationsSettings, seed: int, workers: int | None) -> Run:
    split = _split_dirichlet(settings.num_clients, settings.alpha, bench.labels, seed)
    config = settings.model_dump(mode="json", exclude={"profile", "seeds", "mu"}) | {"seed": seed}

    def compute(workspace: Workspace) -> None:
        training = bench.train(
            bench.method(), split, seed, participation=settings.participation, workers=workers
        )
        trajectory = trajectory_of(training)
        train, test = bench.part("train"), bench.part("test")
        labels = torch.tensor(train.labels)
        images, test_images = (bench.normalizer.apply(part.images) for part in (train, test))
        model, rows = bench.build_model(seed), []
        for round in trajectory.rounds[1:]:
            model.load_state_dict(trajectory.weights(round))
            z, z_test = embed(model, images), embed(model, test_images)  # (N, d), (N_test, d)
            clients = []
            for indices in split.clients:  # what each client computes and sends
                moments = ClassMoments(bench.num_classes, model.feature_dim)
                chosen = torch.tensor(indices)
                moments.update(z[chosen], labels[chosen])
                clients.append(moments)
            merged = ClassMoments.merge(clients)  # what the server makes of it
            means = prototypes(merged)
            with torch.inference_mode():
                head = model.head(z_test).argmax(1)
            predicted = {
                "head": head,
                "euclidean": EuclideanNCM(means).predict(z_test),
                "mahalanobis": MahalanobisNCM(means, regularise(merged.covariance(), 0.01)).predict(z_test),
            }
            for readout, classes in predicted.items():
                scores = classification_scores(test.labels, classes.numpy(), bench.num_classes)
                for metric in ("accuracy", "macro_f1"):
                    rows.append((seed, round, readout, metric, scores[metric]))
        workspace.finish(pd.DataFrame(rows, columns=["seed", "round", "readout", "metric", "value"]))

    checksums = {settings.dataset: bench.images.card.checksum}
    spec = RunSpec("foundations.readouts", config, checksums, (__name__, models.module_of(settings.model)))
    return Store().compute(spec, compute)
