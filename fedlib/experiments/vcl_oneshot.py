"""The one-shot baselines and references on the clients of the VCL-FPFT experiments.

All see the same clients, images and backbone, with the same initial weights where the settings name some. The
classifiers of the distillation methods are trained once for each (data, partition, seed); the references on a
frozen encoder share its features with one another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import NO_TASK, sent
from fedlib.experiments.vcl_scene import Scene, client_feature_data, feature_run
from fedlib.federation.ledger import Ledger
from fedlib.federation.model_state import model_state
from fedlib.methods.continual.metrics import label_scores
from fedlib.methods.oneshot.base import Result, scores
from fedlib.methods.oneshot.dafl import DAFL, dafl
from fedlib.methods.oneshot.dense import DENSE, dense
from fedlib.methods.oneshot.e_fedisca import EFedISCA, e_fedisca
from fedlib.methods.oneshot.fbpft_vi import fbpft_options, fbpft_vi, small_options
from fedlib.methods.oneshot.fedavg_oneshot import FedAvgRounds, fedavg_oneshot
from fedlib.methods.oneshot.fedisca import FedISCA, fedisca
from fedlib.methods.oneshot.frozen_features import FedPFT, Readout, fedpft, frozen_lda, frozen_ncm
from fedlib.methods.oneshot.inversion import Inversion
from fedlib.methods.oneshot.local_training import LocalTraining, train_models
from fedlib.methods.oneshot.references import local_only, logit_ensemble
from fedlib.runs import Run, RunSpec, Store, Workspace

DISTILLED = ("dafl", "dense", "fedisca", "e_fedisca")
FROZEN = ("fbpft_vi", "fedpft", "frozen_ncm", "frozen_lda")
METHODS = ("fedavg", "fedavg1", *DISTILLED, *FROZEN, "local_only", "logit_ensemble")
"""Names of :func:`oneshot`; ``fedavg`` has many rounds, ``fedavg1`` one round of one epoch."""

_COMMON = {"fedavg", "fedavg1", *FROZEN}
"""Methods whose clients have one architecture."""

_BUDGETS: dict[str, Any] = {
    "fedavg": FedAvgRounds,
    "dafl": DAFL,
    "dense": DENSE,
    "fedisca": FedISCA,
    "e_fedisca": EFedISCA,
    "fedpft": FedPFT,
    "inversion": Inversion,
    "classifiers": LocalTraining,
}
_DISTIL = {"dafl": dafl, "dense": dense, "fedisca": fedisca, "e_fedisca": e_fedisca}


def oneshot(
    settings: VCLSettings, methods: Sequence[str] = METHODS, partitions: Sequence[str] | None = None
) -> Study:
    """Run one-shot methods.

    Columns of the metrics: seed, dataset, partition, row, stage (``joint``: all classes at once; ``messages``),
    scope (cil, none), after, task (-1), metric, value, as those of :func:`fedlib.experiments.vcl.rows`. The
    row ``local_only`` holds means over the clients.

    Args:
        settings: of the experiment.
        methods: of :data:`METHODS`.
        partitions: names; None takes those of the settings.

    Raises:
        InputError: an unknown method, one that needs a common architecture where clients have several, or a
            budget or partition that is not possible.
    """
    scene = Scene.of(settings)
    splits = tuple(partitions or settings.partitions)
    for method in methods:
        budget(settings, choose("method", method, METHODS))
        if method in _COMMON and set(settings.encoders) - {settings.model}:
            raise InputError(
                f"method {method!r} needs one architecture, and the clients have "
                f"{', '.join(settings.encoders)}; allowed: {', '.join(sorted(set(METHODS) - _COMMON))}"
            )
    groups = [(split, seed) for split in splits for seed in range(settings.seeds)]
    for split, seed in groups:
        scene.partition(split, seed)
    if set(methods) - _COMMON:
        run_all(partial(_classifier_job, scene), groups, settings.device)
    if set(methods) & set(FROZEN):
        run_all(partial(_feature_job, scene), list(range(settings.seeds)), settings.device)
    labels = [(split, seed, method) for method in methods for split, seed in groups]
    runs = run_all(partial(_method_job, scene), labels, settings.device)
    return Study.of(
        runs, [{"dataset": settings.dataset, "partition": split, "row": row} for split, _, row in labels]
    )


def budget(settings: VCLSettings, method: str) -> Any:
    """Return the settings of a baseline: the paper's or the small ones, with the changes of ``settings``.

    Raises:
        InputError: a setting that the baseline has not, or a value out of range.
    """
    if method in ("frozen_ncm", "frozen_lda"):
        return None
    changes = dict(settings.baselines.get(method, {}))
    if method == "fbpft_vi":
        return (small_options() if settings.small else fbpft_options()).changed(**changes)
    if method == "fedavg1":
        first = budget(settings, "fedavg")
        return _changed(dataclasses.replace(first, rounds=1, local_epochs=1), changes)
    if method in ("classifiers", "local_only", "logit_ensemble"):
        method, changes = "classifiers", dict(settings.classifiers)
    kind = _BUDGETS[choose("baseline", method, _BUDGETS)]
    return _changed(kind.small() if settings.small else kind(), changes)


def _changed(values: Any, changes: dict[str, Any]) -> Any:
    for name in changes:
        choose("budget", name, [field.name for field in dataclasses.fields(values)])
    if isinstance(inner := changes.get("inversion"), dict):
        changes = changes | {"inversion": _changed(values.inversion, inner)}
    return dataclasses.replace(values, **changes)


def _classifier_job(scene: Scene, job: tuple[str, int], workers: int | None) -> Run:
    return classifier_run(scene, *job)


def _feature_job(scene: Scene, seed: int, workers: int | None) -> Run:
    return feature_run(scene, seed)


def _method_job(scene: Scene, job: tuple[str, int, str], workers: int | None) -> Run:
    return method_run(scene, *job)


def classifier_run(scene: Scene, partition: str, seed: int) -> Run:
    """Return the run of the clients' classifiers; tensors ``<client>/<name>``."""
    training = budget(scene.settings, "classifiers")
    config = scene.record(seed, partition=partition, training=dataclasses.asdict(training))

    def compute(workspace: Workspace) -> None:
        clients = list(scene.clients(partition, seed).values())
        trained = train_models(
            lambda client, initial: scene.classifier(initial, client), clients, scene.problem, training, seed
        )
        rows = [
            (seed, k, "accuracy", scores(model, scene.test)["accuracy"]) for k, model in enumerate(trained)
        ]
        tensors = {f"{k}/{n}": t for k, model in enumerate(trained) for n, t in model_state(model).items()}
        workspace.finish(pd.DataFrame(rows, columns=["seed", "client", "metric", "value"]), tensors)

    return Store().compute(_spec(scene, "vcl.classifiers", config), compute)


def _classifiers(scene: Scene, partition: str, seed: int) -> list[nn.Module]:
    tensors = classifier_run(scene, partition, seed).tensors
    found: list[nn.Module] = []
    for k in range(scene.settings.num_clients):
        model = scene.classifier(seeds.integer(seed, "client", k), k)
        prefix = f"{k}/"
        model.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        found.append(model.eval())
    return found


def method_run(scene: Scene, partition: str, seed: int, method: str) -> Run:
    """Return the run of one method, computed or from the store; its columns are those of :func:`oneshot`."""
    values = budget(scene.settings, method)
    record: dict[str, Any] = {} if values is None else dataclasses.asdict(values)
    if method in DISTILLED:
        record["training"] = dataclasses.asdict(budget(scene.settings, "classifiers"))
    config = scene.record(seed, partition=partition, method=method, budget=record)

    def compute(workspace: Workspace) -> None:
        found, ledger = _scores(scene, partition, seed, method, values, workspace)
        names = ("balanced_accuracy", "macro_f1", "majority", "constant")
        numbers = {"overall_accuracy": found["accuracy"]} | {name: found[name] for name in names}
        rows = [("joint", "cil", NO_TASK, NO_TASK, name, value) for name, value in numbers.items()]
        bytes_sent = sent(ledger, scene.settings.num_clients)
        metrics = pd.concat([pd.DataFrame(rows, columns=list(bytes_sent)), bytes_sent], ignore_index=True)
        metrics.insert(0, "seed", seed)
        workspace.finish(metrics)

    return Store().compute(_spec(scene, "vcl.oneshot", config), compute)


def _spec(scene: Scene, name: str, config: dict[str, Any]) -> RunSpec:
    return scene.spec(name, config, __name__)


def _scores(
    scene: Scene, partition: str, seed: int, method: str, values: Any, workspace: Workspace
) -> tuple[dict[str, float], Ledger]:
    if method in ("fedavg", "fedavg1"):
        clients = list(scene.clients(partition, seed).values())
        folder = workspace.folder / "rounds"
        result = fedavg_oneshot(scene.classifier, clients, scene.problem, values, seed, folder, workers=1)
        return result.scores(scene.test), result.ledger
    if method in FROZEN:
        return _frozen(scene, partition, seed, method, values)
    classifiers = _classifiers(scene, partition, seed)
    if method == "local_only":
        found = local_only(classifiers, scene.test)
        return dict(pd.DataFrame(found["clients"]).mean()), found["ledger"]
    if method == "logit_ensemble":
        result = logit_ensemble(classifiers, scene.problem)
    else:
        student = scene.classifier(seeds.integer(seed, "student"))
        result = _DISTIL[method](classifiers, student, scene.problem, values, seed)  # type: ignore[operator]
    return result.scores(scene.test), result.ledger


def _frozen(
    scene: Scene, partition: str, seed: int, method: str, values: Any
) -> tuple[dict[str, float], Ledger]:
    clients, test = client_feature_data(scene, partition, seed, feature_run(scene, seed))
    if method == "fbpft_vi":
        result = fbpft_vi(clients, lambda _: nn.Identity(), scene.num_classes, values, seed)
        with torch.no_grad():
            logits = result.model(test.features)
        return label_scores(test.labels, logits.argmax(1).numpy(), scene.num_classes), result.ledger
    encoder = scene.encoder(seed)
    pairs = [(data.features, torch.from_numpy(data.labels)) for data in clients.values()]
    found: Result
    if method == "fedpft":
        found = fedpft(encoder, pairs, scene.num_classes, values, seed)
    else:
        found = (frozen_ncm if method == "frozen_ncm" else frozen_lda)(encoder, pairs, scene.num_classes)
    head = found.model
    if not isinstance(head, Readout):
        raise InputError(f"{method} has no linear head; allowed: methods on frozen features")
    weight, bias = (dict(head.named_buffers())[name] for name in ("weight", "bias"))
    logits = functional.linear(test.features, weight, bias)
    return label_scores(test.labels, logits.argmax(1).numpy(), scene.num_classes), found.ledger
