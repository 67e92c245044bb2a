"""Experiments with VCL-FPFT: one stored run for each (row, partition, seed), all with the same clients."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedlib.data.lossy_partition import LossySplit
from fedlib.data.partition import Holdings
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl_scene import Scene, client_run, clients_of, trained_clients
from fedlib.features.gaussian import ClassGaussian, Mixture
from fedlib.federation.ledger import Ledger
from fedlib.methods.continual.metrics import SCOPES, AccuracyMatrix
from fedlib.methods.vcl.continual import joint, run_tasks
from fedlib.methods.vcl.diagnostics import diagnose
from fedlib.methods.vcl.pipeline import (
    client_features,
    client_gaussians,
    evaluate_encoders,
    test_features,
)
from fedlib.methods.vcl.presets import Options
from fedlib.methods.vcl.server import aggregate
from fedlib.runs import Run, Store, Workspace

NO_TASK = -1
COLUMNS = ("stage", "scope", "after", "task", "metric", "value")
Row = tuple[str, Mapping[str, Any]]


def rows(
    settings: VCLSettings,
    wanted: Mapping[str, Row],
    partitions: Sequence[str] | None = None,
) -> Study:
    """Run VCL-FPFT with several sets of options.

    Columns of the metrics: seed, dataset, partition, row, stage (``tasks``: the continual stage; ``joint``: one
    head trained on all classes at once; ``messages``; ``features``; ``partition``, see :func:`lost_and_repeated`;
    ``encoders``, see :func:`each_encoder`), scope (taw, cil, all, none), after and task (from 0; -1 where the
    number belongs to no task), metric, value. With several encoders of the test images, one for each client, every
    number is their mean.

    Metrics of both stages: overall_accuracy, average_accuracy, task_accuracy (after the last task); in the scopes
    taw and cil also balanced_accuracy, macro_f1, majority and constant, see :meth:`AccuracyMatrix.overall`, and
    average_majority, the average accuracy of the best constant predictor. Of ``tasks``: accuracy (of each task
    after each), test_samples (of each task), forgetting (the paper's), forgetting_code, bwt. Of ``messages``:
    uplinks (most of any client), uplink_bytes and downlink_bytes (mean of a client). Of ``features``: how far
    draws are from the real features of the same client and class, medians over both; see
    :func:`fedlib.methods.vcl.diagnostics.diagnose`. Accuracies and forgetting in percent. In the scope taw
    single_class_tasks is the number of tasks of one class, whose task-aware accuracy is 100 by construction.

    Args:
        settings: of the experiment.
        wanted: by the name of the row, its preset and what it changes.
        partitions: names; None takes those of the settings.

    Raises:
        InputError: settings, options or partitions that are not possible, before anything is computed.
    """
    scene = Scene.of(settings)
    options = {name: scene.options(base, **changes) for name, (base, changes) in wanted.items()}
    splits = tuple(partitions or settings.partitions)
    groups = [(split, seed) for split in splits for seed in range(settings.seeds)]
    for split, seed in groups:  # a partition that is not possible is refused before anything is computed
        scene.partition(split, seed)
    for own in options.values():
        scene.check(own)
    if not settings.encoders:
        training = {repr(o.part("clients")): o for o in options.values()}
        jobs = [(split, seed, o) for o in training.values() for split, seed in groups]
        run_all(partial(_client_job, scene), jobs, settings.device)
    sharing: dict[str, list[str]] = {}  # rows whose server receives the same are computed together
    for name, own in options.items():
        sharing.setdefault(repr(_received_by(own)), []).append(name)
    labels = [(names, split, seed) for names in sharing.values() for split, seed in groups]
    found = run_all(
        partial(_row_job, scene),
        [(split, seed, [options[name] for name in names]) for names, split, seed in labels],
        settings.device,
    )
    by_label = {
        (name, split, seed): run
        for (names, split, seed), runs in zip(labels, found, strict=True)
        for name, run in zip(names, runs, strict=True)
    }
    ordered = [(name, split, seed) for name in options for split, seed in groups]
    return Study.of(
        [by_label[label] for label in ordered],
        [{"dataset": settings.dataset, "partition": split, "row": name} for name, split, _ in ordered],
    )


def _received_by(options: Options) -> tuple[Any, ...]:
    """Return the options that what the server receives and the features of the test images depend on."""
    return options.part("clients"), options.part("gaussians"), options.evaluated_by


def _client_job(scene: Scene, job: tuple[str, int, Options], workers: int | None) -> Run:
    return client_run(scene, *job)


def _row_job(scene: Scene, job: tuple[str, int, Sequence[Options]], workers: int | None) -> list[Run]:
    partition, seed, wanted = job
    found: list[_Received] = []  # by the first row that is not stored, for all

    def received(folder: Path) -> _Received:
        if not found:
            found.append(_receive(scene, partition, seed, wanted[0], folder))
        return found[0]

    return [_row(scene, partition, seed, options, received) for options in wanted]


def row_run(scene: Scene, partition: str, seed: int, options: Options) -> Run:
    """Return the run of one row, computed or from the store; its columns are those of :func:`rows`."""
    return _row(scene, partition, seed, options, partial(_receive, scene, partition, seed, options))


@dataclass(frozen=True)
class _Received:
    """What the server receives, the test features under each encoder that is tested, and the rows on features."""

    gaussians: Mapping[int, Mapping[int, ClassGaussian]]
    features: Mapping[str, Tensor]
    ledger: Ledger
    drawn: pd.DataFrame


def _receive(scene: Scene, partition: str, seed: int, options: Options, folder: Path) -> _Received:
    if scene.settings.encoders:  # large ones of several kinds: too much to keep for what their sharing saves
        clients = trained_clients(scene, partition, seed, options, folder)
    else:
        clients = clients_of(client_run(scene, partition, seed, options))
    data, ledger = scene.clients(partition, seed), Ledger(options.uplinks)
    encoders = partial(scene.encoder, seed)
    gaussians = client_gaussians(clients, data, encoders, options, seed, ledger)
    real = client_features(clients, data, encoders, options)
    found = pd.concat(
        diagnose(
            {c: Mixture((q,)) for c, q in own.items()}, real[k], torch.from_numpy(data[k].labels), seed=seed
        )
        for k, own in gaussians.items()
    )
    drawn = [
        ("features", "none", NO_TASK, NO_TASK, name, found[name].median())
        for name in ("cosine_real", "cosine_synthetic", "scatter_ratio", "nearest_neighbour")
    ]
    features = test_features(clients, scene.test, encoders, options)
    return _Received(gaussians, features, ledger, pd.DataFrame(drawn, columns=list(COLUMNS)).dropna())


def _row(
    scene: Scene, partition: str, seed: int, options: Options, received: Callable[[Path], _Received]
) -> Run:
    config = scene.record(
        seed,
        partition=partition,
        num_tasks=scene.settings.num_tasks,
        class_order=scene.settings.class_order,
        row_options=asdict(options),
    )

    def compute(workspace: Workspace) -> None:
        folder = workspace.folder / "clients"
        tasks, device, got = scene.tasks(seed), scene.settings.device, received(folder)
        model = aggregate(got.gaussians, scene.num_classes, options)
        heads = {
            "tasks": run_tasks(model, tasks, options, seed, device),
            "joint": joint(model, tasks, options, seed, device),
        }
        evaluated = {
            stage: evaluate_encoders(
                head, got.features, scene.test.labels, options, tasks if stage == "joint" else None
            )
            for stage, head in heads.items()
        }
        parts = [tidy(matrices, stage) for stage, matrices in evaluated.items()]
        if scene.settings.encoders:
            parts.append(each_encoder(evaluated["tasks"], scene.settings.encoders))
        split = scene.partition(partition, seed)
        facts = [sent(got.ledger, len(split.clients)), got.drawn, *lost_and_repeated(split)]
        metrics = pd.concat([*parts, *facts], ignore_index=True)
        metrics.insert(0, "seed", seed)
        workspace.finish(metrics)
        shutil.rmtree(folder, ignore_errors=True)  # there are none where client_run has them

    return Store().compute(scene.spec("vcl.row", config, __name__), compute)


def tidy(matrices: Mapping[str, AccuracyMatrix], stage: str) -> pd.DataFrame:
    """Return the metrics of one stage, means over the encoders; see :func:`rows`."""
    found: list[tuple[Any, ...]] = []
    for matrix in matrices.values():
        for scope in SCOPES:
            a, scores, labels = matrix.values[scope], matrix.scores(scope), matrix.overall(scope)
            numbers = {
                "overall_accuracy": labels["accuracy"],
                "average_accuracy": scores["avg_acc"],
            }
            if stage != "joint":  # one head on all classes forgets nothing
                numbers |= {
                    "forgetting": scores["forgetting_paper"],
                    "forgetting_code": scores["forgetting_code"],
                    "bwt": scores["bwt"],
                }
            if scope != "all":
                names = ("balanced_accuracy", "macro_f1", "majority", "constant")
                numbers |= {name: labels[name] for name in names}
                numbers["average_majority"] = matrix.constant_average(scope)
            if scope == "taw":
                numbers["single_class_tasks"] = float(len(matrix.single))
            found += [(stage, scope, NO_TASK, NO_TASK, name, value) for name, value in numbers.items()]
            last = len(a) - 1
            found += [(stage, scope, NO_TASK, i, "task_accuracy", a[last, i]) for i in range(last + 1)]
            if stage == "joint":
                continue
            found += [
                (stage, scope, t, i, "accuracy", a[t, i]) for t in range(last + 1) for i in range(t + 1)
            ]
        if stage != "joint":
            sizes = enumerate(matrix.samples.astype(float))
            found += [(stage, "none", NO_TASK, i, "test_samples", n) for i, n in sizes]
    frame = pd.DataFrame(found, columns=list(COLUMNS)).dropna()  # one task has no forgetting
    return frame.groupby(list(COLUMNS[:-1]), sort=False, as_index=False)["value"].mean()


def each_encoder(matrices: Mapping[str, AccuracyMatrix], backbones: Sequence[str]) -> pd.DataFrame:
    """Return the overall accuracy under each client's encoder, as metric ``<client>/<backbone>``.

    The columns are those of :func:`rows`, the stage is ``encoders``.

    Args:
        matrices: by encoder of the test images, in the order of the clients.
        backbones: of the clients.
    """
    found = [
        ("encoders", scope, NO_TASK, NO_TASK, f"{k}/{backbones[k]}", matrix.overall(scope)["accuracy"])
        for name, matrix in matrices.items()
        if name.startswith("client ")
        for k in [int(name.removeprefix("client "))]
        for scope in ("taw", "cil")
    ]
    return pd.DataFrame(found, columns=list(COLUMNS))


def lost_and_repeated(split: Holdings) -> list[pd.DataFrame]:
    """Return, for the split of the public code, coverage (share of samples held) and duplicates; else nothing.

    The columns are those of :func:`rows`, the stage is ``partition``.
    """
    if not isinstance(split, LossySplit):
        return []
    numbers = {"coverage": split.coverage, "duplicates": float(split.duplicates)}
    found = [("partition", "none", NO_TASK, NO_TASK, name, value) for name, value in numbers.items()]
    return [pd.DataFrame(found, columns=list(COLUMNS))]


def sent(ledger: Ledger, num_clients: int) -> pd.DataFrame:
    """Return what was sent, with the columns of :func:`rows`."""
    numbers = {
        "uplinks": float(max(ledger.uplinks().values(), default=0)),
        "uplink_bytes": ledger.total_bytes("up") / num_clients,
        "downlink_bytes": ledger.total_bytes("down") / num_clients,
    }
    found = [("messages", "none", NO_TASK, NO_TASK, name, value) for name, value in numbers.items()]
    return pd.DataFrame(found, columns=list(COLUMNS))
