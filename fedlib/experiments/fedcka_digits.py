"""Personalised federated learning on digits that every client sees in its own way.

Five clients hold digits of one kind each: as they are, turned, inverted, noisy, blurred. Their sizes are in the
proportions of the FedCKA paper's five domains (265, 125, 226, 71 and 13 scenes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy.ndimage import uniform_filter

from fedlib import models, seeds
from fedlib.data import Normalizer
from fedlib.errors import choose
from fedlib.experiments.fedcka_options import schedule_options
from fedlib.experiments.federated import Bench
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, run_rounds
from fedlib.federation.tasks import ImageData
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.federated.fedbn import FedBN
from fedlib.methods.federated.feddyn import FedDyn
from fedlib.methods.federated.fedmc import FedMC
from fedlib.methods.federated.fedprox import FedProx
from fedlib.methods.federated.fedrep import FedRep
from fedlib.methods.federated.fedselect import FedSelect
from fedlib.methods.federated.own_domain import OwnDomain
from fedlib.methods.federated.pcgrad import PCGrad
from fedlib.methods.federated.scaffold import Scaffold
from fedlib.runs import Run, RunSpec, Store, Workspace

SCENES = (265, 125, 226, 71, 13)  # training scenes of the paper's domains A to E


def _turned(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.rot90(images, axes=(1, 2))


def _inverted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 255 - images


def _noisy(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return images + rng.normal(0, 70, images.shape)


def _blurred(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return uniform_filter(images.astype(float), size=(0, 3, 3, 0), mode="nearest")


VIEWS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "plain": lambda images, rng: images,
    "turned": _turned,
    "inverted": _inverted,
    "noisy": _noisy,
    "blurred": _blurred,
}
"""What each client makes of the pictures (n, H, W, C); in the order of the clients."""

CENTRAL = "centralized"
METHODS: dict[str, tuple[type[FedAvg], dict[str, Any]]] = {
    "own domain": (OwnDomain, {}),
    CENTRAL: (FedAvg, {}),
    "FedAvg": (FedAvg, {}),
    "FedProx": (FedProx, {"mu": 0.01}),
    "SCAFFOLD": (Scaffold, {"clients": len(VIEWS), "momentum": 0.0}),
    "FedDyn": (FedDyn, {"alpha": 0.01}),
    "PCGrad": (PCGrad, {}),
    "FedBN": (FedBN, {}),
    "FedRep": (FedRep, {}),
    "FedSelect": (FedSelect, {}),
    "FedMC": (FedMC, {}),
    "FedCKA threshold": (FedCKA, {"mode": "threshold"}),
    "FedCKA percentage": (FedCKA, {"mode": "percentage"}),
}
"""Rows of the comparison: the method's class and what it changes."""


@dataclass(frozen=True)
class Domains:
    """The clients' data.

    Attributes:
        bench: the data set and its settings.
    """

    bench: Bench

    @cached_property
    def normalizer(self) -> Normalizer:
        """One normalisation for all, fitted to the training pictures as they are."""
        return self.bench.normalizer

    def train(self, seed: int) -> list[ImageData]:
        """Return the clients' training data: disjoint shares of the training split, each in its own view."""
        split = self.bench.images.train
        order = seeds.rng(seed, "domains").permutation(len(split))
        edges = np.cumsum([0, *SCENES]) / sum(SCENES) * len(split)
        parts = [order[int(a) : int(b)] for a, b in pairwise(edges)]
        return [
            self._viewed(name, split.images[rows], split.labels[rows], seed)
            for name, rows in zip(VIEWS, parts, strict=True)
        ]

    def test(self) -> dict[str, ImageData]:
        """Return the whole test split in each view, by the view's name."""
        split = self.bench.images.test
        return {name: self._viewed(name, split.images, split.labels, 0) for name in VIEWS}

    def _viewed(self, name: str, images: np.ndarray, labels: np.ndarray, seed: int) -> ImageData:
        made = VIEWS[name](images, seeds.rng(seed, "view", name))
        pixels = np.ascontiguousarray(np.clip(np.rint(made), 0, 255).astype(np.uint8))
        return ImageData(pixels, labels, self.normalizer, self.bench.settings.device)


def compare(settings: FedCKASettings, methods: Sequence[str] = tuple(METHODS), **changes: Any) -> Study:
    """Train with each method and evaluate every client's own model on its own kind of pictures.

    Columns: seed, method, round, client, domain, metric, value. Metrics: ``accuracy`` after every round (the one
    model of ``centralized`` on every domain), ``personal_share`` of the parameters, ``cka/<layer>``,
    ``personal/<layer>`` (1 where the client keeps the layer), and ``upload_bytes`` of all clients (client -1).

    Args:
        settings: of the experiment.
        methods: names in ``METHODS``.
        changes: options that replace those of the methods that have them.

    Raises:
        InputError: unknown method, or an option out of range.
    """
    for name in methods:
        choose("method", name, METHODS)
    bench = Bench.of(settings)
    jobs = [(name, seed) for name in methods for seed in range(settings.seeds)]
    for name in methods:
        method_of(settings, bench, name, changes)
    runs = run_all(partial(_run, bench, settings, changes), jobs, settings.device)
    return Study.of(runs, [{"method": name} for name, _ in jobs])


def thresholds(settings: FedCKASettings, taus: Sequence[float]) -> Study:
    """Repeat FedCKA with several thresholds; columns as ``compare``, and ``tau``."""
    studies = [compare(settings, ["FedCKA threshold"], tau=float(tau)) for tau in taus]
    runs = tuple(run for study in studies for run in study.runs)
    parts = [study.metrics.assign(tau=float(tau)) for study, tau in zip(studies, taus, strict=True)]
    return Study(runs, pd.concat(parts, ignore_index=True))


def final(study: Study, last: int = 3) -> pd.DataFrame:
    """Return the accuracy of the last rounds: mean over ``last`` rounds by seed, method and domain.

    With rows for the domain ``weighted``, the mean over domains weighted by their numbers of training samples.
    """
    rows = study.select(metric="accuracy")
    rows = rows[rows["round"] > rows["round"].max() - last]
    keys = ["seed", "method", *(["tau"] if "tau" in rows else [])]
    each = rows.groupby([*keys, "domain"], as_index=False)["value"].mean()
    weight = dict(zip(VIEWS, SCENES, strict=True))
    shares = each["domain"].map(weight) / sum(SCENES)
    pooled = each.assign(value=each["value"] * shares).groupby(keys, as_index=False)["value"].sum()
    return pd.concat([each, pooled.assign(domain="weighted")], ignore_index=True).assign(metric="accuracy")


def method_of(settings: FedCKASettings, bench: Bench, name: str, changes: Mapping[str, Any]) -> FedAvg:
    """Return a method with the local training of the settings.

    Args:
        settings: of the experiment.
        bench: the data set with these settings.
        name: one of ``METHODS``.
        changes: options that replace those of the method, if it has them.

    Raises:
        InputError: an option out of range.
    """
    kind, options = METHODS[name]
    own = schedule_options(settings, kind) | options
    known = set(kind.__dataclass_fields__)
    return bench.method(kind, **own | {key: value for key, value in changes.items() if key in known})


def _run(
    bench: Bench,
    settings: FedCKASettings,
    changes: Mapping[str, Any],
    job: tuple[str, int],
    workers: int | None,
) -> Run:
    name, seed = job
    method = method_of(settings, bench, name, changes)
    schedule = Rounds(settings.rounds, seed, keep="last", device=settings.device)
    config = {
        "dataset": settings.dataset,
        "model": settings.model,
        "domains": list(VIEWS),
        "pooled": name == CENTRAL,
        "method": {"name": method.name, **asdict(method)},
        **asdict(schedule),
    }
    checksums = {settings.dataset: bench.images.card.checksum}
    modules = (__name__, type(method).__module__, models.module_of(settings.model))

    def compute(workspace: Workspace) -> None:
        domains = Domains(bench)
        parts, tests = domains.train(seed), domains.test()
        clients = [_pooled(parts)] if name == CENTRAL else parts
        views = {} if name == CENTRAL else dict(enumerate(VIEWS))
        trajectory = run_rounds(
            bench.task(), method, Clients(clients), schedule, workspace.folder / "trajectory",
            evaluation=tests, client_evaluation=views, workers=workers,
        )  # fmt: skip
        workspace.finish(
            _metrics(trajectory.metrics(), trajectory.ledger(), name == CENTRAL).assign(seed=seed)
        )

    return Store().compute(RunSpec("fedcka.digits", config, checksums, modules), compute)


def _pooled(parts: Sequence[ImageData]) -> ImageData:
    images = np.concatenate([part.images for part in parts])
    return replace(parts[0], images=images, labels=np.concatenate([part.labels for part in parts]))


def _metrics(rounds: pd.DataFrame, ledger: pd.DataFrame, central: bool) -> pd.DataFrame:
    names = list(VIEWS)
    scores = rounds[(rounds["metric"] == "accuracy") & ((rounds["client"] >= 0) | central)]
    scores = scores.assign(domain=scores["split"])
    if central:
        scores = scores.assign(client=scores["split"].map(names.index))
    inner = rounds[rounds["metric"].str.startswith(("personal", "cka/"))]
    inner = inner.assign(domain=inner["client"].map(dict(enumerate(names))))
    sent = (
        ledger[(ledger["direction"] == "up") & (not central)].groupby("round", as_index=False)["bytes"].sum()
    )
    sent = sent.rename(columns={"bytes": "value"}).assign(client=-1, domain="all", metric="upload_bytes")
    columns = ["round", "client", "domain", "metric", "value"]
    return pd.concat([part[columns] for part in (scores, inner, sent)], ignore_index=True)
