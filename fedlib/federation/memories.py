"""What clients hold at the end of a run: read from its last checkpoint."""

from __future__ import annotations

import json

from fedlib import files
from fedlib.errors import InputError
from fedlib.federation.model_state import State
from fedlib.federation.rounds import Trajectory


def client_memories(trajectory: Trajectory) -> dict[int, State]:
    """Return by client id what each client kept from the last round; clients that keep nothing are left out.

    ``FedAvg.personal_weights`` makes a client's model of it and of the global one.

    Raises:
        InputError: the checkpoint is absent, or not the one that the run wrote.
    """
    folder = trajectory.folder / "checkpoint"
    try:
        record = json.loads((folder / "checkpoint.json").read_text())
        path, digest = folder / f"{record['round']:04d}.safetensors", record["memory"]
        tensors = files.read_tensors(path) if digest else {}
        if digest and files.sha256(path) != digest:
            raise ValueError(f"{path.name} has another checksum")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} holds no whole checkpoint ({error}); allowed: a finished run") from error
    found: dict[int, State] = {}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition("/")
        if owner != "server":
            found.setdefault(int(owner), {})[rest] = tensor
    return found
