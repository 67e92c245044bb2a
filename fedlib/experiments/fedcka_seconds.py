"""What scoring layers costs beside training, in seconds and in memory (Verhoog et al. 2026, section V-D)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlib.data.nuscenes import DOMAINS
from fedlib.experiments.fedcka_detection import ALL, Scenes, trajectory_of
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.federation import masks as personal
from fedlib.federation.messages import Broadcast
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.federation.tasks import Task
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.federated.fedavg import Local
from fedlib.runs import Run, RunSpec, Store, Workspace


def scoring_cost(settings: FedCKASettings) -> Study:
    """Measure one round with masks of every client: one run a seed, from the common start.

    All is done in one thread and counted in processor seconds, those of the clock where nothing else runs; on a
    GPU in those of the clock. They depend on the machine; a stored run keeps what it found. Columns: seed, method,
    client, metric, value. By client: ``training_seconds`` and ``scoring_seconds`` of the round. Of all: the same
    for the whole training (all rounds train, those after the warm-up score), ``scoring_share`` of their sum, and
    ``scoring_peak_gb``: the most memory that tensors hold at one time while layers are scored, with both models.

    Args:
        settings: of the paper's experiments.

    Raises:
        InputError: see ``fedcka_detection.Scenes.of``.
    """
    scenes = Scenes.of(settings)
    like = scenes.method("fedcka", {})
    method = _Timed(**{item.name: getattr(like, item.name) for item in fields(like)})
    start = scenes.start()
    runs = [_run(scenes, method, start, seed) for seed in range(scenes.settings.seeds)]
    return Study.of(runs, [{"method": "fedcka"}] * len(runs))


def frames_for_share(study: Study, share: float, frames: int) -> float:
    """Return with how many training frames a client's scoring would take a share of its round.

    The seconds of training grow with the frames, those of scoring do not once a client has more than it scores on.

    Args:
        study: of ``scoring_cost``.
        share: of scoring in the seconds of both, in (0, 1).
        frames: training frames of all clients in the study.
    """
    rows = study.metrics[study.metrics["client"] != ALL]
    found = rows.groupby("metric")["value"].sum() / study.metrics["seed"].nunique()
    scoring = found["scoring_seconds"] / rows["client"].nunique()
    return float(scoring * (1 - share) / share / (found["training_seconds"] / frames))


def _run(scenes: Scenes, method: _Timed, start: Run | None, seed: int) -> Run:
    config = {
        "start": start.key if start else "random",
        "method": {"name": method.name, **asdict(method)},
        "rounds": scenes.settings.rounds,
        "seed": seed,
    }

    def compute(workspace: Workspace) -> None:
        rows = list(_measured(scenes, method, start, seed))
        frame = pd.DataFrame(rows, columns=["client", "metric", "value"])
        workspace.finish(frame.assign(seed=seed))

    spec: RunSpec = scenes.spec("fedcka.scoring", config, __name__)
    return Store().compute(spec, compute)


def _measured(
    scenes: Scenes, method: _Timed, start: Run | None, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Yield (client, metric, value)."""
    task, rounds = scenes.task(), scenes.settings.rounds
    model = FlatModel(task.build_model(seed), task.device)
    weights: State = model_state(model.module)
    if start is not None:
        weights = trajectory_of(start).weights(scenes.settings.warm_epochs)
    message = Broadcast(method.warmup + 1, weights)
    clients = {name: scenes.frames(name, "train") for name in DOMAINS}
    # One client that is not counted: caches and lazy imports.
    method.client_update(task, model, len(clients) - 1, clients[list(DOMAINS)[-1]], message, {}, seed)
    total = {"training_seconds": 0.0, "scoring_seconds": 0.0}
    for client, (name, data) in enumerate(clients.items()):
        found = method.client_update(task, model, client, data, message, {}, seed).metrics
        for metric in total:
            yield name, metric, found[metric]
            total[metric] += found[metric]
    total["training_seconds"] *= rounds
    total["scoring_seconds"] *= max(rounds - method.warmup, 0)
    for metric, value in total.items():
        yield ALL, metric, value
    yield ALL, "scoring_share", total["scoring_seconds"] / sum(total.values())
    peak = peak_bytes(lambda: method.score_again(task, model, message, clients["A"], seed))
    yield ALL, "scoring_peak_gb", (peak + model.values.nbytes) / 1e9


@dataclass(frozen=True)
class _Timed(FedCKA):
    """FedCKA that notes how long training and scoring take."""

    def train(self, task: Task, local: Local) -> dict[str, float]:
        start = _clock(local)
        found = super().train(task, local)
        local.metrics["training_seconds"] = _clock(local) - start
        return found

    def masks(self, task: Task, local: Local) -> personal.Masks:
        start = _clock(local)
        found = super().masks(task, local)
        local.metrics["scoring_seconds"] = _clock(local) - start
        return found

    def score_again(self, task: Task, model: FlatModel, message: Broadcast, data: Any, seed: int) -> None:
        """Score the layers of a model as it stands, as client 0."""
        local = Local(0, message.round, seed, model, model.vector_of(message.weights), message, {}, data, 1)
        self.masks(task, local)


def _clock(local: Local) -> float:
    if local.model.values.is_cuda:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the most bytes that tensors which ``function`` makes hold at one time; what is inside a single
    operation of torch is not seen."""
    held = _Held()
    with held:
        function()
    return held.most


@dataclass
class _Held(TorchDispatchMode):
    """Notes the storage of every tensor that an operation gives out until nothing refers to it."""

    sizes: dict[int, int] = field(default_factory=dict)
    now: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.sizes:
            return
        self.sizes[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
