"""What moves a CKA score: local training by step size and length, and how it scores what is not alike at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import torch

from fedlib import seeds
from fedlib.data.nuscenes import DOMAINS
from fedlib.errors import InputError, choose
from fedlib.experiments.fedcka_detection import Scenes, trajectory_of
from fedlib.experiments.fedcka_masks import anatomy
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.features.cka import LARGEST_GRAM, is_constant, linear_cka
from fedlib.federation.engine import one_thread
from fedlib.federation.messages import Broadcast
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.methods.fedcka.activations import recording
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.fedcka.layers import partition
from fedlib.methods.federated.fedavg import Local
from fedlib.runs import Run, Store, Workspace


def scores_after(
    settings: FedCKASettings, client: str, factors: Sequence[float], epochs: Sequence[int]
) -> Study:
    """Train one client from the common start with several step sizes and lengths, and score its layers.

    Columns: seed, factor (of the step size), epochs, client, steps, metric ``cka/<layer>``, value. The step size
    is constant, the optimizer starts anew, and the order of batches is that of the first seed.

    Args:
        settings: of the paper's experiments.
        client: one of the domains.
        factors: by which the settings' step size is multiplied.
        epochs: passes over the client's scenes.

    Raises:
        InputError: unknown client, or a factor or number of passes out of range.
    """
    choose("client", client, DOMAINS)
    scenes = Scenes.of(settings)
    start = scenes.start()
    jobs = [(float(factor), int(count)) for factor in factors for count in epochs]
    for job in jobs:
        _method(scenes, job)
    runs = run_all(partial(_scores, scenes, start, client), jobs, scenes.settings.device)
    return Study.of(runs, [{"factor": factor, "epochs": count} for factor, count in jobs])


def blind_spots(settings: FedCKASettings) -> pd.DataFrame:
    """Return how each layer of the detector scores features that have nothing to do with one another.

    Rows are the layers in network order. Columns: part, branch, parameters; ``rows`` n and ``channels`` p of one
    input; ``formula`` 1 / (1 + n / p), the expected biased CKA of independent Gaussian features; ``directions``
    d, see ``effective_directions``; ``shuffled`` d / (n - 1), the expected score of the layer's features and the
    same ones with their rows in random order; ``untrained``, the score against another, untrained network on the
    same input; ``constant``, the share of inputs for which the layer says the same in every row, which scores 1.
    Means over the inputs, training frames of domain A; the network is the common start.

    Args:
        settings: of the paper's experiments.
    """
    scenes = Scenes.of(settings)
    task, weights = scenes.task(), _start_weights(scenes, scenes.start())
    model, other = task.build_model(0), task.build_model(1)
    model.load_state_dict(weights)
    layers = anatomy(model)
    names = {module for layer in partition(model) for module in layer.modules}
    frames = scenes.frames("A", "train")
    count = min(scenes.settings.inputs, len(frames))
    found: list[dict[str, Any]] = []
    with one_thread():
        for index in seeds.rng(0, "blind-spots").choice(len(frames), size=count, replace=False):
            batch = frames.batch(torch.tensor([int(index)]))
            with recording(model, names, "positions") as one:
                task.predict(model, batch)
            with recording(other, names, "positions") as two:
                task.predict(other, batch)
            found += [
                {"layer": name, **_blindness(torch.cat(one[name]), torch.cat(two[name]), int(index))}
                for name in layers.index
                if name in one and name in two
            ]
    return layers.join(pd.DataFrame(found).groupby("layer").mean())


def effective_directions(x: torch.Tensor) -> float:
    """Return ``(tr C)^2 / |C|^2`` of the covariance C of ``x`` (n, p): from 1, one direction, to at most p."""
    centred = x.double() - x.double().mean(0)
    covariance = centred.T @ centred
    return float(covariance.trace() ** 2 / covariance.square().sum())


def step_sizes(settings: FedCKASettings) -> pd.DataFrame:
    """Return the clients' step size in the middle of each round: round and value."""
    method = Scenes.of(settings).method("fedcka", {})
    rounds = range(1, method.total_rounds + 1)
    # all that the step size depends on
    middle = [cast(Local, SimpleNamespace(round=number, steps=1, total_steps=2)) for number in rounds]
    return pd.DataFrame({"round": rounds, "value": [method.lr_at(local) for local in middle]})


def _blindness(x: torch.Tensor, y: torch.Tensor, stream: int) -> dict[str, float]:
    n, p = x.shape
    if n > LARGEST_GRAM:
        draw = seeds.torch_generator(0, "blind-spots-rows", stream)
        kept = torch.randperm(n, generator=draw)[:LARGEST_GRAM]
        x, y = x[kept], y[kept]
    constant = is_constant(x)
    directions = float("nan") if constant else effective_directions(x)
    return {
        "rows": n,
        "channels": p,
        "formula": 1 / (1 + len(x) / p),
        "directions": directions,
        # over all orders of the rows P: E <K~, P K~ P'> = (tr K~)^2 / (n - 1), and CKA divides it by |K~|^2
        "shuffled": 1.0 if constant else directions / (len(x) - 1),
        "untrained": linear_cka(x, y),
        "constant": float(constant),
    }


def _method(scenes: Scenes, job: tuple[float, int]) -> FedCKA:
    factor, count = job
    if not factor > 0:
        raise InputError(f"factor is {factor}; allowed: above 0")
    method = scenes.method(
        "fedcka", {"lr_floor": 1.0, "lr": scenes.settings.lr * factor, "local_epochs": count}
    )
    assert isinstance(method, FedCKA)
    return method


def _start_weights(scenes: Scenes, start: Run | None) -> State:
    if start is None:
        return model_state(scenes.task().build_model(0))
    return trajectory_of(start).weights(scenes.settings.warm_epochs)


def _scores(
    scenes: Scenes, start: Run | None, client: str, job: tuple[float, int], workers: int | None
) -> Run:
    method = replace(_method(scenes, job), warmup_rounds=0)
    config = {
        "start": start.key if start else "random",
        "client": client,
        "method": {"name": method.name, **asdict(method)},
        "seed": 0,
    }

    def compute(workspace: Workspace) -> None:
        task = scenes.task()
        said = method.client_update(
            task, FlatModel(task.build_model(0), task.device), list(DOMAINS).index(client),
            scenes.frames(client, "train"), Broadcast(1, _start_weights(scenes, start)), {}, 0,
        ).metrics  # fmt: skip
        rows = [(name, value) for name, value in said.items() if name.startswith("cka/")]
        table = pd.DataFrame(rows, columns=["metric", "value"])
        workspace.finish(table.assign(seed=0, client=client, steps=said["steps"]))

    return Store().compute(scenes.spec("fedcka.probe", config, type(method).__module__), compute)
