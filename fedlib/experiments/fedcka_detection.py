"""Federated 3D detection with one client for each of five domains: the comparison of the FedCKA paper.

Every method trains the compact CMT on the domains' training scenes through the round loop, from one common start;
each client's model is then evaluated on the validation scenes of every domain with the metrics of nuScenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedlib import data
from fedlib.data.detection_metrics import weighted_mean
from fedlib.data.nuscenes import DOMAINS, DrivingSet
from fedlib.data.nuscenes.domains import WARM
from fedlib.errors import choose
from fedlib.experiments.fedcka_options import schedule_options
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.federation.detection import Detection, DetectionData, detection_data, pooled
from fedlib.federation.memories import client_memories
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
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
from fedlib.models import detector
from fedlib.runs import Run, RunSpec, Store, Workspace

CENTRAL = "centralized"
METHODS: dict[str, tuple[type[FedAvg], dict[str, Any]]] = {
    "own_domain": (OwnDomain, {}),
    CENTRAL: (FedAvg, {}),
    "fedavg": (FedAvg, {}),
    "fedprox": (FedProx, {"mu": 0.01}),
    "scaffold": (Scaffold, {"clients": len(DOMAINS)}),
    "feddyn": (FedDyn, {"alpha": 0.01}),
    "pcgrad": (PCGrad, {}),
    "fedbn": (FedBN, {}),
    "fedrep": (FedRep, {"head": ("heads.",)}),
    "fedselect": (FedSelect, {}),
    "fedmc": (FedMC, {}),
    "fedcka": (FedCKA, {"mode": "threshold"}),
    "fedcka_percentage": (FedCKA, {"mode": "percentage"}),
}
"""Rows of the comparison: the method's class and what it changes.

SCAFFOLD's control variates are steps divided by step sizes. Under AdamW, which normalises its steps, they are far
larger than gradients, and training falls behind the common start; the row is there to show it.
"""

SCORES = ("map", "nds", "cap")
ALL = "all"  # the client or domain of what belongs to none
_AT_ONCE = 16  # frames of a batch in evaluation


@dataclass(frozen=True)
class Scenes:
    """Driving scenes, ready for federated training with some settings.

    Attributes:
        settings: those of the pages on driving scenes.
        driving: the scenes.
    """

    settings: FedCKASettings
    driving: DrivingSet

    @classmethod
    def of(cls, settings: FedCKASettings) -> Scenes:
        """Open the scenes that ``settings.for_scenes()`` names, and check what needs no computing.

        Raises:
            InputError: unknown data set or detector, files that are missing, or a GPU that this machine has not.
        """
        planned = settings.for_scenes() if settings.scenes else settings
        Rounds(rounds=planned.rounds, seed=0, device=planned.device)
        scenes = cls(planned, data.driving(planned.dataset, **planned.dataset_options))
        scenes.task()
        return scenes

    def task(self) -> Detection:
        """Return the learning task."""
        config = replace(detector.preset(self.settings.model), bf16=self.settings.bf16)
        return Detection(config, device=self.settings.device)

    def frames(self, domain: str, split: str) -> DetectionData:
        """Return the frames of a domain's split: in memory, or in files where it would not hold them."""
        if (domain, split) not in self._read:
            tokens = self.driving.samples(domain, split)
            config, sweeps = self.task().config, self.settings.sweeps
            self._read[domain, split] = detection_data(self.driving, tokens, config, sweeps=sweeps)
        return self._read[domain, split]

    def pooled(self, split: str) -> DetectionData:
        """Return the frames of a split of all domains, one after the other."""
        return pooled([self.frames(domain, split) for domain in DOMAINS])

    def check(self) -> None:
        """Refuse scenes on which no detector could be scored; called before anything is trained.

        Raises:
            InputError: a domain without a validation scene, or without a box that counts in one.
        """
        for domain in DOMAINS:
            _ = self.frames(domain, "val").truth

    @cached_property
    def _read(self) -> dict[tuple[str, str], DetectionData]:
        return {}

    @cached_property
    def weights(self) -> dict[str, float]:
        """Numbers of validation scenes of the domains, by which averages are weighted."""
        return {domain: float(counts["val"]) for domain, counts in self.driving.counts().items()}

    def method(self, name: str, changes: Mapping[str, Any]) -> FedAvg:
        """Return a method of ``METHODS`` with the local training of these settings.

        Args:
            name: of the method.
            changes: options that replace those of the methods that have them.

        Raises:
            InputError: an option out of range.
        """
        kind, options = METHODS[name]
        own = schedule_options(self.settings, kind) | options
        if own.get("mode") != "threshold":
            # What is personal stays so; the authors' public schedule puts a quarter of the rounds before it.
            own["warmup_rounds"] = max(self.settings.warmup_rounds, self.settings.rounds // 4)
        return self._local(kind, own | dict(changes))

    def _local(self, kind: type[FedAvg], options: Mapping[str, Any]) -> FedAvg:
        names = (
            "lr",
            "momentum",
            "weight_decay",
            "local_epochs",
            "batch_size",
            "optimizer",
            "clip",
            "lr_floor",
        )
        common: dict[str, Any] = {name: getattr(self.settings, name) for name in names}
        known = set(kind.__dataclass_fields__)
        own = {name: value for name, value in options.items() if name in known}
        return kind(**common | {"optimizer_state": "keep"} | own)

    def spec(self, name: str, config: Mapping[str, Any], *modules: str) -> RunSpec:
        """Return what decides a run on these scenes."""
        scenes = {
            "dataset": self.settings.dataset,
            "dataset_options": self.settings.dataset_options,
            "sweeps": self.settings.sweeps,
            "detector": asdict(self.task().config) | {"prior": [str(s) for s in self.task().config.prior]},
        }
        checksums = {self.settings.dataset: self.driving.card.checksum}
        return RunSpec(name, scenes | dict(config), checksums, (__name__, *modules))

    def start(self, workers: int | None = None) -> Run | None:
        """Return the run that learns the common start from the scenes set aside for it; None for a random start.

        All methods and all seeds start from it.
        """
        epochs = self.settings.warm_epochs
        if not epochs:
            return None
        method = self._local(FedAvg, {"total_rounds": epochs})
        schedule = Rounds(epochs, seed=0, keep="last", evaluate_every=epochs, device=self.settings.device)
        config = {"method": {"name": method.name, **asdict(method)}, **asdict(schedule)}

        def compute(workspace: Workspace) -> None:
            self.check()
            trajectory = run_rounds(
                self.task(), method, Clients([self.pooled(WARM)]), schedule, _trajectory(workspace.folder),
                workers=workers,
            )  # fmt: skip
            rows = trajectory.metrics()
            workspace.finish(rows[rows["metric"] == "train_loss"].assign(seed=0))

        return Store().compute(self.spec("fedcka.start", config), compute)


def compare(settings: FedCKASettings, methods: Sequence[str] = tuple(METHODS), **changes: Any) -> Study:
    """Train with each method and evaluate every client's own model on every domain.

    Columns: seed, method, masking (threshold, percentage or none), level (tau or rho), round, client, domain,
    metric, value. Metrics by client and domain: ``map``, ``nds``, ``cap``, the five errors and ``ap_<class>``; by
    client (domain ``all``): ``own_nds``, ``personal_share``, and with FedCKA ``cka/<layer>`` and
    ``personal/<layer>`` by round. Of the run (client and domain ``all``): ``map_weighted``, ``nds_weighted`` and
    ``cap_weighted`` (own domains, weighted by validation scenes; NaN where no domain has a car),
    ``off_diagonal_nds``, ``row_difference`` (largest difference of two clients' scores on a domain),
    ``uplink_bytes``, ``mask_share`` (of these), ``personalized_share`` and ``layers_shared_again``.
    ``centralized`` has one client, whose model stands in every row.

    Args:
        settings: of the paper's experiments.
        methods: names in ``METHODS``.
        changes: options that replace those of the methods that have them.

    Raises:
        InputError: unknown method, or an option out of range.
    """
    for name in methods:
        choose("method", name, METHODS)
    scenes = Scenes.of(settings)
    planned = [scenes.method(name, changes) for name in methods]
    start = scenes.start()
    jobs = [(name, seed) for name in methods for seed in range(scenes.settings.seeds)]
    runs = run_all(partial(_run, scenes, start, changes), jobs, scenes.settings.device)
    labels = {name: _labels(name, method) for name, method in zip(methods, planned, strict=True)}
    return Study.of(runs, [labels[name] for name, _ in jobs])


def levels(settings: FedCKASettings, taus: Sequence[float], rhos: Sequence[float]) -> Study:
    """Repeat FedCKA with several thresholds and shares; columns as ``compare``.

    At threshold or share 1 layers without a score become personal too, and the share is taken at once.
    """
    studies = [compare(settings, ["fedcka"], tau=float(tau), exact_limits=tau == 1) for tau in taus]
    for rho in rhos:
        schedule = {"schedule": "per_round"} if rho == 1 else {}
        studies.append(
            compare(settings, ["fedcka_percentage"], rho=float(rho), exact_limits=rho == 1, **schedule)
        )
    runs = tuple(run for study in studies for run in study.runs)
    return Study(runs, pd.concat([study.metrics for study in studies], ignore_index=True))


def trajectory_of(run: Run) -> Trajectory:
    """Return the trajectory that a run holds."""
    return Trajectory(_trajectory(Path(run.path)))


def client_models(method: FedAvg, trajectory: Trajectory) -> dict[str, State]:
    """Return each client's model at the end of a run, by domain."""
    weights, kept = trajectory.weights(trajectory.rounds[-1]), client_memories(trajectory)
    return {
        domain: method.personal_weights(weights, kept.get(client, {}))
        for client, domain in enumerate(DOMAINS)
    }


def _trajectory(folder: Path) -> Path:
    return folder / "trajectory"


def _labels(name: str, method: FedAvg) -> dict[str, object]:
    if not isinstance(method, FedCKA):
        return {"method": name, "masking": "none", "level": float("nan")}
    level = method.tau if method.mode == "threshold" else method.rho
    return {"method": "fedcka", "masking": method.mode, "level": level}


def _run(
    scenes: Scenes, start: Run | None, changes: Mapping[str, Any], job: tuple[str, int], workers: int | None
) -> Run:
    name, seed = job
    method = scenes.method(name, changes)
    rounds = scenes.settings.rounds
    schedule = Rounds(rounds, seed, keep="last", evaluate_every=rounds, device=scenes.settings.device)
    config = {
        "pooled": name == CENTRAL,
        "start": start.key if start else "random",
        "method": {"name": method.name, **asdict(method)},
        **asdict(schedule),
    }

    def compute(workspace: Workspace) -> None:
        scenes.check()
        parts = [scenes.frames(domain, "train") for domain in DOMAINS]
        clients = [scenes.pooled("train")] if name == CENTRAL else parts
        trajectory = run_rounds(
            scenes.task(), method, Clients(clients), schedule, _trajectory(workspace.folder),
            initial=trajectory_of(start).weights(scenes.settings.warm_epochs) if start else None, workers=workers,
        )  # fmt: skip
        if name == CENTRAL:
            models = dict.fromkeys(DOMAINS, trajectory.weights(rounds))
        else:
            models = client_models(method, trajectory)
        table = [*_scores(scenes, models), *_exchange(trajectory, name == CENTRAL)]
        rows = pd.DataFrame(table, columns=["client", "domain", "metric", "value"]).assign(round=rounds)
        workspace.finish(pd.concat([rows, _layers(trajectory)], ignore_index=True).assign(seed=seed))

    return Store().compute(scenes.spec("fedcka.detection", config, type(method).__module__), compute)


Row = tuple[str, str, str, float]


def _scores(scenes: Scenes, models: Mapping[str, State]) -> list[Row]:
    """Evaluate each client's model on each domain, and sum up."""
    task = scenes.task()
    rows: list[Row] = []
    matrix: dict[str, dict[tuple[str, str], float]] = {name: {} for name in SCORES}
    known: list[tuple[State, dict[str, dict[str, float]]]] = []
    model = FlatModel(task.build_model(0), task.device)
    for client, weights in models.items():
        # Clients with the same model need one evaluation.
        found = next((scores for other, scores in known if _equal(other, weights)), None)
        if found is None:
            model.load(weights)
            found = {domain: evaluated(task, model, scenes.frames(domain, "val")) for domain in DOMAINS}
            known.append((weights, found))
        for domain, scores in found.items():
            rows += [(client, domain, metric, value) for metric, value in scores.items()]
            for name in SCORES:
                if name in scores:
                    matrix[name][client, domain] = scores[name]
    for name, cells in matrix.items():
        own = {client: value for (client, domain), value in cells.items() if client == domain}
        rows.append((ALL, ALL, f"{name}_weighted", averaged(own, scenes.weights)))
    nds = matrix["nds"]
    rows += [(client, ALL, "own_nds", nds[client, client]) for client in models]
    away = [value for (client, domain), value in nds.items() if client != domain]
    rows.append((ALL, ALL, "off_diagonal_nds", float(np.mean(away))))
    spread = [np.ptp([nds[client, domain] for client in models]) for domain in DOMAINS]
    rows.append((ALL, ALL, "row_difference", float(max(spread))))
    return rows


def averaged(own: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the weighted mean over the domains that have a score; NaN where none has, as car AP without cars."""
    return weighted_mean(own, weights) if own else float("nan")


def evaluated(task: Detection, model: FlatModel, frames: DetectionData) -> dict[str, float]:
    """Return the scores of a model on some frames."""
    model.module.eval()
    with torch.inference_mode():
        predictions = [
            task.predict(model.module, frames.batch(indices))
            for indices in torch.arange(len(frames)).split(_AT_ONCE)
        ]
    return task.score(frames, predictions)


def _equal(one: State, two: State) -> bool:
    return all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def _exchange(trajectory: Trajectory, central: bool) -> list[Row]:
    """Return what all clients sent in all rounds; training on pooled scenes sends nothing."""
    if central:
        return []
    sent = trajectory.ledger()
    sent = sent[sent["direction"] == "up"].groupby("kind")["bytes"].sum()
    total = float(sent.sum())
    return [
        (ALL, ALL, "uplink_bytes", total),
        (ALL, ALL, "mask_share", float(sent.get("masks", 0.0)) / total),
    ]


def _layers(trajectory: Trajectory) -> pd.DataFrame:
    """Return what the clients kept by round, layer by layer where the method says it, and sums of it."""
    rows = trajectory.metrics()
    inner = rows[rows["metric"].str.startswith(("personal_share", "personal/", "cka/"))]
    names = dict(enumerate(DOMAINS))
    inner = inner.assign(client=inner["client"].map(names), domain=ALL)[
        ["round", "client", "domain", "metric", "value"]
    ]
    last = rows["round"].max()
    shares = inner[(inner["metric"] == "personal_share") & (inner["round"] == last)]["value"]
    total: list[tuple[int, str, str, str, float]] = []
    if len(shares):
        total.append((last, ALL, ALL, "personalized_share", float(shares.mean())))
    kept = inner[inner["metric"].str.startswith("personal/")]
    if len(kept):
        table = kept.pivot(index=["client", "metric"], columns="round", values="value").sort_index(axis=1)
        again = int((table.diff(axis=1) < 0).to_numpy().sum())
        total.append((last, ALL, ALL, "layers_shared_again", float(again)))
    return pd.concat([inner, pd.DataFrame(total, columns=inner.columns)], ignore_index=True)
