"""The sets of rows that the pages on VCL-FPFT compare, and their results in the columns of the register."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import NO_TASK, Row
from fedlib.experiments.vcl_scene import Scene, client_run, clients_of
from fedlib.federation.ledger import Ledger
from fedlib.methods.vcl.pipeline import client_features, client_gaussians
from fedlib.methods.vcl.server import aggregate, synthesise
from fedlib.seeds import torch_generator

PRESET_ROWS: dict[str, Row] = {"vcl": ("paper", {}), "vcl_code": ("code", {})}
"""The method as the paper describes it and as its code has it."""

LABELS = {
    "vcl": "VCL-FPFT (paper)",
    "vcl_joint": "VCL-FPFT (paper), one head at once",
    "vcl_code": "VCL-FPFT (code)",
    "fbpft_vi": "FBPFT-VI",
    "fedavg": "FedAvg, many rounds",
    "fedavg1": "FedAvg(1)",
    "dafl": "DAFL",
    "dense": "DENSE",
    "fedisca": "FedISCA",
    "e_fedisca": "E-FedISCA (from its abstract)",
    "local_only": "clients alone, mean",
    "logit_ensemble": "ensemble of the clients",
    "fedpft": "FedPFT, frozen encoder",
    "frozen_ncm": "class means, frozen encoder",
    "frozen_lda": "LDA, frozen encoder",
}
"""Names of the methods in tables and figures, in their order."""


def over_datasets(
    settings: VCLSettings, study: Callable[[VCLSettings], Study], datasets: Sequence[str] | None = None
) -> Study:
    """Return a study of each of the settings' data sets in one, the name in the paper in the column ``dataset``.

    Args:
        settings: with the data sets in ``settings.datasets``.
        study: makes the study of one data set, for example ``lambda own: rows(own, PRESET_ROWS)``.
        datasets: names of some of them; None takes all.

    Raises:
        InputError: unknown data set, or no data set at all.
    """
    plans = {name: settings.for_dataset(name) for name in datasets or settings.datasets}
    if not plans:
        raise InputError("the settings plan no data sets; allowed: at least one in datasets")
    found = {name: study(own) for name, own in plans.items()}
    metrics = [one.metrics.assign(dataset=name) for name, one in found.items()]
    return Study(
        tuple(run for one in found.values() for run in one.runs), pd.concat(metrics, ignore_index=True)
    )


def continual(study: Study) -> pd.DataFrame:
    """Return what the rows of :func:`fedlib.experiments.vcl.rows` score after the last task, in every scope.

    Columns: seed, dataset, partition, method (the row), scope, task (-1 where the number belongs to no task),
    metric and value.

    Args:
        study: of rows with a continual stage.
    """
    frame = study.metrics
    kept = frame[(frame["stage"] == "tasks") & ~frame["metric"].isin(["accuracy", "test_samples"])]
    return kept.rename(columns={"row": "method"}).drop(columns=["stage", "after"])


def real_and_drawn(
    scene: Scene, partition: str, seed: int, preset: str, *, per_class: int = 40
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return real training features of client 0, and what the server draws from all clients' messages.

    Args:
        scene: the data.
        partition: its name.
        seed: of the repetition.
        preset: ``paper`` or ``code``.
        per_class: features that are drawn of each class.

    Returns:
        ``real`` and ``drawn``: features of length 1, float32 (N, d), and classes, int64 (N,). The real ones are
        under the encoder that the preset tests with: the client's own, or the clients' mean.
    """
    options = scene.options(preset)
    data, encoders = scene.clients(partition, seed), partial(scene.encoder, seed)
    clients = clients_of(client_run(scene, partition, seed, options))
    sent = client_gaussians(clients, data, encoders, options, seed, Ledger(options.uplinks))
    model = aggregate(sent, scene.num_classes, options)
    sizes = {c: per_class for c, mixture in enumerate(model.mixtures) if mixture is not None}
    real = client_features(clients, data, encoders, options)
    return {
        "real": (real[0], torch.from_numpy(data[0].labels)),
        "drawn": synthesise(model.mixtures, sizes, torch_generator(seed, "pictures")),
    }


def by_method(*studies: Study, stages: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the class-incremental results of the rows, the row's name in the column ``method``.

    Columns: seed, dataset, partition, method, metric and value.

    Args:
        studies: of VCL-FPFT and of the one-shot methods; of the former the continual stage counts.
        stages: further methods: the head that was trained on all classes at once, by the row that has it.
    """
    frame = pd.concat([study.metrics for study in studies], ignore_index=True)
    staged = set(frame.loc[frame["stage"] == "tasks", "row"])
    joint = frame["stage"] == "joint"
    further = [
        frame[(frame["row"] == row) & (joint | (frame["stage"] == "messages"))].assign(row=name)
        for name, row in (stages or {}).items()
    ]
    kept = frame[~(joint & frame["row"].isin(staged))]
    kept = pd.concat([kept, *further], ignore_index=True)
    kept = kept[kept["scope"].isin(["cil", "none"]) & (kept["task"] < 0)]
    return kept.rename(columns={"row": "method"}).drop(columns=["stage", "scope", "after", "task"])


def messages(ledgers: Mapping[str, Ledger], largest: int, seed: int) -> pd.DataFrame:
    """Return what the clients sent, as tidy rows with seed, preset, client, metric and value.

    Metrics: uplinks_per_client; and per_sample_tensors_sent (client -1), the tensors in all messages to the
    server, encoders left out, that are no vectors of class parameters, because they have more than one dimension
    or are longer than ``largest``.

    Args:
        ledgers: by preset.
        largest: the longest dimension of a message of class distributions, d(d + 1)/2.
        seed: of the runs.
    """
    found: list[tuple[int, str, int, str, float]] = []
    for name, ledger in ledgers.items():
        found += [(seed, name, k, "uplinks_per_client", n) for k, n in ledger.uplinks().items()]
        shapes = [
            shape
            for message in ledger.messages
            if message.direction == "up" and message.kind != "encoder"
            for shape in message.shapes.values()
        ]
        single = sum(len(shape) > 1 or max(shape, default=0) > largest for shape in shapes)
        found.append((seed, name, NO_TASK, "per_sample_tensors_sent", float(single)))
    return pd.DataFrame(found, columns=["seed", "preset", "client", "metric", "value"])
