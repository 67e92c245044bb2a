"""Federated training of an image classifier as a stored run: the trajectory that every readout starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedlib import data, models
from fedlib.data import ImageSet, Normalizer, Partition
from fedlib.experiments.settings import RoundSettings
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
from fedlib.federation.tasks import Classification, ImageData
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.runs import Run, RunSpec, Store, Workspace


@dataclass(frozen=True)
class Bench:
    """A data set, ready for federated training with some settings.

    Attributes:
        settings: of the experiment.
        images: the data set.
    """

    settings: RoundSettings
    images: ImageSet

    @classmethod
    def of(cls, settings: RoundSettings, images: ImageSet | None = None) -> Bench:
        """Load the data set that ``settings`` name, and check all that can be checked without computing.

        Args:
            settings: of the experiment.
            images: what to take instead of the data set as it is.

        Raises:
            InputError: unknown data set or model, data that are not found (the message says what to do), or a
                GPU or bfloat16 arithmetic that this machine has not.
        """
        models.module_of(settings.model)
        Rounds(rounds=settings.rounds, seed=0, device=settings.device)
        bench = cls(settings, data.load(settings.dataset) if images is None else images)
        bench.task()
        return bench

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.images.class_names)

    @cached_property
    def normalizer(self) -> Normalizer:
        """Normalisation fitted to the training images."""
        return Normalizer.fit(self.images.splits["train"].images)

    def part(self, split: str) -> ImageData:
        """Return a whole split."""
        part = self.images.splits[split]
        return ImageData(part.images, part.labels, self.normalizer, self.settings.device)

    @property
    def labels(self) -> np.ndarray:
        """Training labels (N,) int64."""
        return self.images.splits["train"].labels

    def build_model(self, seed: int) -> models.Classifier:
        """Return a new model of these settings."""
        _, height, _, channels = self.images.splits["train"].images.shape
        return models.build(
            self.settings.model,
            num_classes=self.num_classes,
            in_channels=channels,
            image_size=height,
            seed=seed,
        )

    def task(self) -> Classification:
        """Return the learning task."""
        build: Callable[[int], nn.Module] = self.build_model
        return Classification(build, self.num_classes, bf16=self.settings.bf16)

    def method(self, kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
        """Return a method with the local training of these settings; ``options`` replace or add to them."""
        names = {"lr", "momentum", "weight_decay", "local_epochs", "batch_size", "optimizer"}
        chosen = names & set(type(self.settings).model_fields)  # not every paper's settings have an optimizer
        return kind(**{name: getattr(self.settings, name) for name in chosen} | options)

    def train(
        self,
        method: FedAvg,
        partition: Partition,
        seed: int,
        *,
        rounds: int | None = None,
        participation: float = 1.0,
        leaves: Mapping[int, int] | None = None,
        held_out: np.ndarray | None = None,
        held_out_after: int = 0,
        common: int = 0,
        workers: int | None = None,
        store: Store | None = None,
    ) -> Run:
        """Return the run of a federation, computed or from the store; ``trajectory_of`` opens its trajectory.

        Its metrics have the columns seed, round, client (-1: the server), split, metric, value.

        Args:
            method: how the clients learn.
            partition: training samples of each client.
            seed: of this repetition.
            rounds: number of rounds; None takes the settings'.
            participation: share of the clients in a round.
            leaves: last round of each client that leaves.
            held_out: training samples (indices) that nobody trains on after round ``held_out_after``.
            held_out_after: see ``held_out``.
            common: number of first rounds in which all clients are present with all their samples, and which
                other runs share. They are computed once, as a run of their own, and taken over: the result has
                the same bits, and the same key, as without.
            workers: processes; None takes the default.
            store: where runs are; None takes the default.
        """
        schedule = Rounds(
            rounds=rounds or self.settings.rounds,
            seed=seed,
            participation=participation,
            device=self.settings.device,
        )
        reserved = np.array([], dtype=np.int64) if held_out is None else np.sort(held_out)
        config = {
            "dataset": self.settings.dataset,
            "model": self.settings.model,
            "bf16": self.settings.bf16,
            "method": {"name": method.name, **asdict(method)},
            "partition": [client.tolist() for client in partition.clients],
            "leaves": {str(client): last for client, last in sorted((leaves or {}).items())},
            "held_out": reserved.tolist(),
            "held_out_after": held_out_after,
            **asdict(schedule),
        }
        modules = (
            __name__,
            type(method).__module__,
            models.module_of(self.settings.model),
        )
        checksums = {self.settings.dataset: self.images.card.checksum}
        spec = RunSpec("federated.training", config, checksums, modules)
        store = store or Store()
        if common and (known := store.get(spec)):
            return known
        first = common and self.train(
            method, partition, seed, rounds=common, participation=participation, workers=workers, store=store
        )
        train = self.part("train")

        def compute(workspace: Workspace) -> None:
            kept = {
                client: train.subset(np.setdiff1d(indices, reserved))
                for client, indices in enumerate(partition.clients)
                if np.isin(indices, reserved).any()
            }
            population = Clients(
                [train.subset(indices) for indices in partition.clients],
                last_round=dict(leaves or {}),
                after=kept,
                changes_after=held_out_after,
            )
            trajectory = run_rounds(
                self.task(), method, population, schedule, workspace.folder / "trajectory",
                evaluation={"test": self.part("test")}, start=trajectory_of(first) if first else None,
                workers=workers,
            )  # fmt: skip
            metrics = trajectory.metrics()
            metrics.insert(0, "seed", seed)
            workspace.finish(metrics)

        return store.compute(spec, compute)


def trajectory_of(run: Run) -> Trajectory:
    """Return the trajectory that a run of ``Bench.train`` holds."""
    return Trajectory(Path(run.path) / "trajectory")
