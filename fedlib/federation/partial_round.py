"""The updates of a long round that is not complete yet, on disk: an interrupted run goes on after them.

What an interruption costs is the training of the clients that were done in the round's first seconds, of those at
work, and, with several workers, of those that were done before one with a smaller id.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fedlib import files
from fedlib.federation.messages import Update
from fedlib.federation.model_state import State

log = logging.getLogger(__name__)

SECONDS = 5.0  # into a round; before that, training again costs less than many small files
_STATES = ("weights", "masks", "statistics", "memory")


class PartialRound:
    """The stored updates of one round.

    An update counts from the moment that ``updates.json`` names it with its checksum; a file that is damaged or
    not named is ignored, and its client is trained again.

    Attributes:
        folder: its files: ``updates.json`` and one file for each client.
        round: number of the round.
        found: clients with a stored update.
    """

    def __init__(self, folder: Path, round: int) -> None:
        self.folder, self.round = folder, round
        self._started = time.monotonic()
        self._digests = self._read()

    @property
    def found(self) -> frozenset[int]:
        """The clients whose updates are stored and whole."""
        return frozenset(self._digests)

    def merged(self, clients: Sequence[int], computed: Iterator[Update]) -> Iterator[Update]:
        """Yield the updates of ``clients``, ascending: the stored ones, and the others from ``computed``.

        Args:
            clients: ids of the round, ascending.
            computed: updates of those clients that are not in ``found``, ascending; each is stored before it is
                passed on, once the round has lasted longer than ``SECONDS``.
        """
        for client in clients:
            if client in self._digests:
                yield _unpacked(client, files.read_tensors(self._file(client)))
                continue
            update = next(computed)
            if time.monotonic() - self._started >= SECONDS:
                self._store(update)
            yield update

    def clear(self) -> None:
        """Remove all files: the round is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _store(self, update: Update) -> None:
        self._digests[update.client] = files.write_tensors(self._file(update.client), _packed(update))
        names = {str(client): digest for client, digest in self._digests.items()}
        files.write_json(self.folder / "updates.json", {"round": self.round, "clients": names})

    def _read(self) -> dict[int, str]:
        path = self.folder / "updates.json"
        if not path.exists():
            return {}
        try:
            record = json.loads(path.read_text())
            named = {int(client): digest for client, digest in record["clients"].items()}
            if record["round"] != self.round:
                return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the updates of round %d cannot be read (%s); trained again", self.round, error)
            return {}
        whole = {client: digest for client, digest in named.items() if _matches(self._file(client), digest)}
        if damaged := sorted(named.keys() - whole.keys()):
            log.warning("round %d: damaged updates of clients %s; trained again", self.round, damaged)
        if whole:
            log.info("round %d: %d of its updates are stored", self.round, len(whole))
        return whole

    def _file(self, client: int) -> Path:
        return self.folder / f"client-{client}.safetensors"


def _matches(path: Path, digest: str) -> bool:
    return path.exists() and files.sha256(path) == digest


def _packed(update: Update) -> State:
    """Return all of an update as tensors. Names begin with a number: sums over tensors keep their order."""
    parts: list[tuple[str, torch.Tensor]] = [("num_samples/", torch.tensor(update.num_samples))]
    for name, value in update.metrics.items():
        parts.append((f"metrics/{name}", torch.tensor(value, dtype=torch.float64)))
    for kind in _STATES:
        parts += [(f"{kind}/{name}", tensor) for name, tensor in getattr(update, kind).items()]
    # copies: memory and masks may be the same tensors, which safetensors refuses
    return {f"{number:06d}/{name}": tensor.clone() for number, (name, tensor) in enumerate(parts)}


def _unpacked(client: int, tensors: State) -> Update:
    """Return the update that ``_packed`` got."""
    kinds: dict[str, State] = {kind: {} for kind in ("num_samples", "metrics", *_STATES)}
    for numbered in sorted(tensors):
        _, kind, name = numbered.split("/", 2)
        kinds[kind][name] = tensors[numbered]
    return Update(
        client,
        int(kinds["num_samples"][""].item()),
        metrics={name: value.item() for name, value in kinds["metrics"].items()},
        **{kind: kinds[kind] for kind in _STATES},
    )
