"""How far a round of local training moves the layers of clients: the chapter on representation similarity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fedlib import models, seeds
from fedlib.data import partition as partitions
from fedlib.errors import InputError
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.settings import FoundationsSettings
from fedlib.experiments.study import Study
from fedlib.federation.engine import one_thread
from fedlib.federation.messages import Broadcast
from fedlib.federation.model_state import FlatModel, State
from fedlib.methods.fedcka.activations import called_modules
from fedlib.methods.fedcka.layers import Layer, partition
from fedlib.methods.fedcka.scores import Scoring, layer_scores
from fedlib.runs import Run, RunSpec, Store, Workspace


@dataclass(frozen=True)
class Federation:
    """FedAvg on skewed clients, and the models inside it.

    Attributes:
        settings: of the chapters.
        seed: of the partition and the training.
    """

    settings: FoundationsSettings
    seed: int = 0

    @cached_property
    def bench(self) -> Bench:
        """The data set with these settings."""
        return Bench.of(self.settings)

    @cached_property
    def training(self) -> Run:
        """The stored run of all rounds."""
        return self.bench.train(
            self.bench.method(), self._split, self.seed, participation=self.settings.participation, workers=1
        )

    def global_model(self, round: int) -> nn.Module:
        """Return the global model after a round; 0 is the untrained one.

        Raises:
            InputError: no such round.
        """
        model = self.bench.build_model(self.seed)
        model.load_state_dict(self._weights(round))
        return model.eval()

    def local_model(self, client: int, round: int) -> nn.Module:
        """Return a client's model after its training in a round, before the average.

        A client's update is a pure function of the global model, its data, the round and the seed, so it is
        computed again here and has the bits that it had in the run.

        Raises:
            InputError: no such client or round.
        """
        if not 0 <= client < self.settings.num_clients:
            raise InputError(f"client is {client}; allowed: 0 to {self.settings.num_clients - 1}")
        if round < 1:
            raise InputError(f"round is {round}; allowed: 1 to {self.settings.rounds}")
        task = self.bench.task()
        scratch = FlatModel(task.build_model(self.seed))
        data = self.bench.part("train").subset(self._split.clients[client])
        broadcast = Broadcast(round, self._weights(round - 1))
        with one_thread():
            update = self.bench.method().client_update(task, scratch, client, data, broadcast, {}, self.seed)
        model = self.bench.build_model(self.seed)
        model.load_state_dict(update.weights)
        return model.eval()

    def images(self, count: int) -> list[Tensor]:
        """Return that many test images, each a batch (1, C, H, W) of its own; the same for all models."""
        test = self.bench.part("test")
        if not 1 <= count <= len(test):
            raise InputError(f"number of images is {count}; allowed: 1 to {len(test)}")
        chosen = seeds.rng(self.seed, "similarity-images").choice(len(test), size=count, replace=False)
        return [test.batch(torch.tensor([int(index)]))[0] for index in chosen]

    @cached_property
    def _split(self) -> partitions.Partition:
        return partitions.dirichlet(
            self.bench.labels, self.settings.num_clients, self.settings.alpha, self.seed
        )

    def _weights(self, round: int) -> State:
        return trajectory_of(self.training).weights(round)


def similarity(first: nn.Module, second: nn.Module, images: Sequence[Tensor], **options: Any) -> pd.Series:
    """Return the linear CKA of each layer of two models, by the layer's title, in the order of the network.

    Args:
        first: a model.
        second: another one of the same architecture.
        images: batches of one image.
        options: of ``fedlib.methods.fedcka.scores.Scoring``: rows, hsic, max_rows.
    """
    layers = _layers(first, images)
    found = layer_scores(
        first, second, layers, images, lambda model, one: model(one), Scoring(**options), seed=0
    )
    names = titles(first, layers)
    return pd.Series({names[layer.name]: found.get(layer.name, float("nan")) for layer in layers}, name="cka")


def weight_change(first: nn.Module, second: nn.Module, images: Sequence[Tensor]) -> pd.Series:
    """Return ``|w_2 - w_1| / |w_1|`` of each layer's parameters, by the layer's title.

    Args:
        first: a model.
        second: another one of the same architecture.
        images: as in ``similarity``.
    """
    before, after = first.state_dict(), second.state_dict()
    layers, found = _layers(first, images), {}
    names = titles(first, layers)
    for layer in layers:
        old, new = (torch.cat([s[t].flatten().double() for t in layer.tensors]) for s in (before, after))
        found[names[layer.name]] = float((new - old).norm() / old.norm())
    return pd.Series(found, name="weight change")


def titles(model: nn.Module, layers: Sequence[Layer]) -> dict[str, str]:
    """Return readable names of layers: convolution 1, norm 1, ..., head."""
    words = {nn.Conv2d: "convolution", nn.BatchNorm2d: "norm", nn.Linear: "linear map"}
    modules, counts, found = dict(model.named_modules()), Counter[str](), {}
    for layer in layers:
        kind = words.get(type(modules[layer.name]), type(modules[layer.name]).__name__)
        counts[kind] += 1
        found[layer.name] = layer.name if layer.name == "head" else f"{kind} {counts[kind]}"
    return found


def over_rounds(settings: FoundationsSettings, clients: tuple[int, int], images: int) -> Study:
    """Compare the layers of two clients with those of the global model, round after round.

    Columns: seed, round, pair, layer, metric (cka | weight change), value. Pairs: each client after its training
    against the global model that it started from, and the two clients against each other. Rows of the
    representations are the places of all images together, and the estimate of HSIC is the unbiased one.

    Args:
        settings: of the chapters.
        clients: two clients.
        images: number of test images that the models see.

    Raises:
        InputError: no such client, or more images than there are.
    """
    runs = [_over_rounds(settings, clients, images, seed) for seed in range(settings.seeds)]
    return Study.of(runs)


def _over_rounds(settings: FoundationsSettings, clients: tuple[int, int], images: int, seed: int) -> Run:
    federation = Federation(settings, seed)
    inputs = federation.images(images)
    config = settings.model_dump(mode="json", exclude={"profile", "seeds", "mu"})
    config |= {"seed": seed, "clients": list(clients), "images": images}

    def compute(workspace: Workspace) -> None:
        parts = []
        for round in _some(settings.rounds):
            before = federation.global_model(round - 1)
            first, second = (federation.local_model(client, round) for client in clients)
            pairs = {
                f"client {clients[0]} and its start": (before, first),
                f"client {clients[1]} and its start": (before, second),
                "the two clients": (first, second),
            }
            for name, pair in pairs.items():
                cka = similarity(*pair, inputs, rows="pooled", hsic="unbiased", max_rows=1024)
                values = {"cka": cka, "weight change": weight_change(*pair, inputs)}
                long = pd.DataFrame(values).rename_axis("layer").reset_index()
                parts.append(long.melt("layer", var_name="metric").assign(round=round, pair=name, seed=seed))
        workspace.finish(pd.concat(parts, ignore_index=True))

    checksums = {settings.dataset: federation.bench.images.card.checksum}
    modules = (__name__, models.module_of(settings.model))
    return Store().compute(RunSpec("foundations.similarity", config, checksums, modules), compute)


def _some(rounds: int) -> list[int]:
    """Return rounds from the first to the last, close together at the start."""
    return sorted({min(rounds, number) for number in (1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100)} | {rounds})


def _layers(model: nn.Module, images: Sequence[Tensor]) -> tuple[Layer, ...]:
    return partition(model, called_modules(model, lambda network: network(images[0])))
