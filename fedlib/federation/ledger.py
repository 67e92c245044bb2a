"""A record of what crossed the network in protocols that have no round loop, such as one-shot methods.

It tells whether a protocol is one-shot: a client that sends in two rounds has two uplinks, whatever the size. A
ledger with a limit refuses the message that would break it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation.messages import serialized_bytes

SERVER = -1
COLUMNS = ("round", "sender", "receiver", "direction", "kind", "messages", "bytes")


@dataclass(frozen=True)
class Sent:
    """One message.

    Attributes:
        round: from 1.
        sender: client id, or ``SERVER``.
        receiver: client id, or ``SERVER``.
        kind: what it is, for example ``gaussians`` or ``encoder``.
        bytes: length of its tensors, serialised.
        shapes: shape of each of its tensors, by name.
    """

    round: int
    sender: int
    receiver: int
    kind: str
    bytes: int
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def direction(self) -> str:
        """``up`` (to the server), ``down`` (from it) or ``side`` (between clients)."""
        return "up" if self.receiver == SERVER else "down" if self.sender == SERVER else "side"


class Ledger:
    """Messages in the order in which they were sent.

    Args:
        most_uplinks: rounds in which a client may send to the server; 1 for a one-shot protocol, None for any.

    >>> ledger = Ledger(most_uplinks=1)
    >>> ledger.send(0, SERVER, 1, "gaussians", {})
    >>> ledger.uplinks()
    {0: 1}
    """

    def __init__(self, most_uplinks: int | None = None) -> None:
        if most_uplinks is not None and most_uplinks < 1:
            raise InputError(f"most_uplinks is {most_uplinks}; allowed: at least 1, or None")
        self.most_uplinks = most_uplinks
        self.messages: list[Sent] = []

    def send(self, sender: int, receiver: int, round: int, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Note a message; its tensors are measured, not kept.

        Raises:
            InputError: a round below 1, an id below -1, a message from someone to themselves, or a client that
                sends to the server in more rounds than allowed; that message is not noted.
        """
        if round < 1 or sender < SERVER or receiver < SERVER or sender == receiver:
            raise InputError(
                f"message from {sender} to {receiver} in round {round}; "
                f"allowed: two different ids >= {SERVER} (the server), rounds from 1"
            )
        if self.most_uplinks is not None and receiver == SERVER:
            rounds = {m.round for m in self.messages if m.sender == sender and m.receiver == SERVER} | {round}
            if len(rounds) > self.most_uplinks:
                raise InputError(
                    f"client {sender} sends {kind!r} to the server in round {round}, its uplink number "
                    f"{len(rounds)}; allowed: {self.most_uplinks}"
                )
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.messages.append(Sent(round, sender, receiver, kind, serialized_bytes(tensors), shapes))

    def frame(self) -> pd.DataFrame:
        """Return messages and bytes for each (round, sender, receiver, direction, kind), sorted by these."""
        rows = [(m.round, m.sender, m.receiver, m.direction, m.kind, 1, m.bytes) for m in self.messages]
        keys = list(COLUMNS[:5])
        return pd.DataFrame(rows, columns=list(COLUMNS)).groupby(keys, as_index=False).sum()[list(COLUMNS)]

    def uplinks(self) -> dict[int, int]:
        """Return for each client that sent to the server the number of rounds in which it did."""
        rounds: dict[int, set[int]] = {}
        for m in self.messages:
            if m.direction == "up":
                rounds.setdefault(m.sender, set()).add(m.round)
        return {client: len(rounds[client]) for client in sorted(rounds)}

    def total_bytes(self, direction: str) -> int:
        """Return the bytes of all messages ``up``, ``down`` or ``side``."""
        return sum(m.bytes for m in self.messages if m.direction == direction)
