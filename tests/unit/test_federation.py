"""The round loop: what a result may and may not depend on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch
from sklearn.metrics import f1_score, recall_score
from torch import nn

from fedlib import files, seeds
from fedlib.data.tensors import Normalizer
from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation import partial_round
from fedlib.federation.aggregation import EmptyRound, weighted_mean
from fedlib.federation.engine import WorkerDied, _shares, worker_count
from fedlib.federation.messages import Broadcast, Update, serialized_bytes
from fedlib.federation.method import Server
from fedlib.federation.model_state import FlatModel, model_state
from fedlib.federation.population import Clients, sample_clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
from fedlib.federation.tasks import Classification, ImageData, classification_scores
from fedlib.methods.federated.fedavg import FedAvg, Local
from fedlib.methods.federated.fedprox import FedProx
from fedlib.methods.federated.optimizers import SGD


class SmallNet(nn.Module):
    """A convolution, BatchNorm and dropout: everything that has made federations go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 6 * 6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.conv(images)))
        return self.head(self.drop(hidden.flatten(1)))


def build(seed: int) -> nn.Module:
    with seeds.torch_global(seed, "model"):
        return SmallNet()


TASK = Classification(build, 3)
METHOD = FedAvg(lr=0.05, batch_size=8)


def make_data(count: int, seed: int = 0) -> ImageData:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    images = generator.integers(0, 80, (count, 6, 6, 1)) + 60 * labels[:, None, None, None]
    return ImageData(images.astype(np.uint8), labels, Normalizer((0.4,), (0.25,)))


def make_clients(sizes: tuple[int, ...] = (20, 33, 9)) -> Clients:
    return Clients([make_data(size, seed) for seed, size in enumerate(sizes)])


TEST = {"test": make_data(300, 99)}


def run(folder: Path, method: FedAvg = METHOD, clients: Clients | None = None, **options: Any) -> Trajectory:
    settings = {"rounds": 3, "seed": 5} | {
        name: options.pop(name) for name in list(options) if name in Rounds.__dataclass_fields__
    }
    return run_rounds(
        TASK, method, clients or make_clients(), Rounds(**settings), folder, evaluation=TEST,
        **({"workers": 1} | options),
    )  # fmt: skip


def final_bits(trajectory: Trajectory) -> tuple[bytes, ...]:
    folder = trajectory.folder
    last = folder / "global" / f"round-{trajectory.rounds[-1]:04d}.safetensors"
    return last.read_bytes(), (folder / "rounds.csv").read_bytes(), (folder / "ledger.csv").read_bytes()


def test_one_and_two_workers_give_the_same_bits(tmp_path: Path) -> None:
    one = run(tmp_path / "1", workers=1)
    two = run(tmp_path / "2", workers=2)
    assert final_bits(one) == final_bits(two)


def test_a_repeat_gives_the_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    first, second, other = (run(tmp_path / str(i), seed=seed) for i, seed in enumerate((5, 5, 6)))
    assert final_bits(first) == final_bits(second)
    assert final_bits(first)[0] != final_bits(other)[0]
    assert not torch.equal(first.weights(0)["conv.weight"], other.weights(0)["conv.weight"])


def test_global_random_state_is_neither_used_nor_changed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state()
    first = run(tmp_path / "1")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert final_bits(run(tmp_path / "2")) == final_bits(first)


def test_the_number_of_torch_threads_is_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    run(tmp_path)
    assert torch.get_num_threads() == before


class _Kill(Exception):
    pass


@dataclass(frozen=True)
class Mortal(FedAvg):
    """Fails in the middle of a round, after its first client; never while ``fatal`` is 0."""

    fatal: ClassVar[int] = 0
    error: ClassVar[Callable[[], BaseException]] = _Kill

    def loss(self, task: Any, local: Local, batch: Any) -> torch.Tensor:
        if local.round == self.fatal and local.client == 1:
            raise type(self).error()
        return super().loss(task, local, batch)


MORTAL = Mortal(lr=0.05, batch_size=8)


def cut_run(folder: Path, fatal: int, method: FedAvg = MORTAL, **options: Any) -> None:
    """Run until the failure in round ``fatal``."""
    Mortal.fatal = fatal
    try:
        with pytest.raises(_Kill):
            run(folder, method=method, **options)
    finally:
        Mortal.fatal = 0


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, fatal: int) -> None:
    whole = run(tmp_path / "whole", method=MORTAL)
    cut_run(tmp_path / "cut", fatal)
    assert final_bits(run(tmp_path / "cut", method=MORTAL)) == final_bits(whole)


def test_rows_of_a_round_that_was_not_completed_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        original = files.write_json

        def write_json(path: Path, value: Any) -> str:
            if path.name == "checkpoint.json" and value["round"] == 2:
                raise _Kill
            return original(path, value)

        patch.setattr(files, "write_json", write_json)
        with pytest.raises(_Kill):
            run(tmp_path / "cut")
    assert len((tmp_path / "cut" / "rounds.csv").read_bytes()) > 0
    assert final_bits(run(tmp_path / "cut")) == final_bits(whole)


_KILLED = """
    import sys, torch
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import test_federation as t
    t.run(Path(sys.argv[1]), rounds=40, workers=2, clients=t.make_clients((200, 330, 90)))
"""


def test_sigkill_in_mid_round_and_resume_give_the_same_bits(tmp_path: Path) -> None:
    clients = make_clients((200, 330, 90))
    script = textwrap.dedent(_KILLED.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cut")], start_new_session=True)
    deadline = time.monotonic() + 90
    while len(list((tmp_path / "cut" / "global").glob("*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    stored = len(list((tmp_path / "cut" / "global").glob("*")))
    assert 4 <= stored < 41, "the kill must fall inside the run"
    resumed = run(tmp_path / "cut", rounds=40, clients=clients)
    assert final_bits(resumed) == final_bits(run(tmp_path / "whole", rounds=40, clients=clients))


_KILLED_AFTER_AN_UPDATE = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import test_federation as t
    t.partial_round.SECONDS, store = 0.0, t.partial_round.PartialRound._store
    def deadly(self, update):
        store(self, update)
        if (self.round, update.client) == (2, 3):
            os.kill(os.getpid(), signal.SIGKILL)
    t.partial_round.PartialRound._store = deadly
    t.part_of_six(Path(sys.argv[1]), workers=2)
"""


def part_of_six(folder: Path, workers: int = 1) -> Trajectory:
    """Two thirds of six clients a round, who keep their BatchNorm and are scored with it."""
    return run_rounds(
        TASK, FedAvg(lr=0.05, batch_size=8, batch_norm="local"), make_clients((20, 33, 9, 25, 14, 30)),
        Rounds(3, 5, participation=0.67), folder, evaluation=TEST,
        client_evaluation=dict.fromkeys(range(6), "test"), workers=workers,
    )  # fmt: skip


def test_sigkill_after_a_stored_update_with_workers_and_personal_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = textwrap.dedent(_KILLED_AFTER_AN_UPDATE.format(tests=str(Path(__file__).parent)))
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path / "cut")], timeout=90, check=False)
    assert process.returncode == -signal.SIGKILL
    whole = part_of_six(tmp_path / "whole")
    ids = whole.metrics().query("round == 2 and split == 'train' and metric == 'samples'")["client"].tolist()
    trained = counted(monkeypatch)
    resumed = part_of_six(tmp_path / "cut")
    assert [client for round, client in trained if round == 2] == [client for client in ids if client > 3]
    assert final_bits(resumed) == final_bits(whole)


def test_a_run_that_is_killed_right_after_its_last_round_leaves_no_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_round, "SECONDS", 0.0)

    def kill(self: partial_round.PartialRound) -> None:
        if self.round == 3:
            raise _Kill

    with monkeypatch.context() as patch:
        patch.setattr(partial_round.PartialRound, "clear", kill)
        with pytest.raises(_Kill):
            run(tmp_path)
    left = tmp_path / "checkpoint" / "round"
    assert left.exists()
    assert run(tmp_path).rounds == (0, 1, 2, 3)
    assert not left.exists()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "name", ["global/round-0001.safetensors", "global/round-0002.safetensors", "rounds.csv"]
)
@pytest.mark.parametrize("damage", [_flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:9])])
def test_a_damaged_unfinished_run_starts_anew(
    tmp_path: Path, name: str, damage: Callable[[Path], Any]
) -> None:
    whole = run(tmp_path / "whole", method=MORTAL)
    cut_run(tmp_path / "cut", 3)
    damage(tmp_path / "cut" / name)
    again = run(tmp_path / "cut", method=MORTAL)
    assert final_bits(again) == final_bits(whole)
    assert again.rounds == whole.rounds


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"round": 2}'])
def test_an_unreadable_checkpoint_starts_anew(tmp_path: Path, content: str) -> None:
    cut_run(tmp_path / "cut", 3)
    (tmp_path / "cut" / "checkpoint" / "checkpoint.json").write_text(content)
    assert final_bits(run(tmp_path / "cut", method=MORTAL)) == final_bits(run(tmp_path / "w", method=MORTAL))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that grows by (round, client) with each local training."""
    found: list[tuple[int, int]] = []
    original = FedAvg.train

    def train(self: FedAvg, task: Any, local: Local) -> dict[str, float]:
        found.append((local.round, local.client))
        return original(self, task, local)

    monkeypatch.setattr(FedAvg, "train", train)
    return found


def test_a_long_round_goes_on_after_the_clients_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_round, "SECONDS", 0.0)
    whole = run(tmp_path / "whole", method=MORTAL)
    cut_run(tmp_path / "cut", 2)
    trained = counted(monkeypatch)
    again = run(tmp_path / "cut", method=MORTAL)
    assert trained == [(2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]
    assert final_bits(again) == final_bits(whole)
    assert not (again.folder / "checkpoint" / "round").exists()


def test_a_short_round_stores_no_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_run(tmp_path, 2)
    trained = counted(monkeypatch)
    run(tmp_path, method=MORTAL)
    assert trained[0] == (2, 0)


@pytest.mark.parametrize("name", ["client-0.safetensors", "updates.json"])
@pytest.mark.parametrize("damage", [_flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:9])])
def test_a_damaged_update_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], Any]
) -> None:
    monkeypatch.setattr(partial_round, "SECONDS", 0.0)
    cut_run(tmp_path / "cut", 3)
    damage(tmp_path / "cut" / "checkpoint" / "round" / name)
    trained = counted(monkeypatch)
    again = run(tmp_path / "cut", method=MORTAL)
    assert trained == [(3, 0), (3, 1), (3, 2)]
    assert final_bits(again) == final_bits(run(tmp_path / "whole", method=MORTAL))


def test_a_stored_update_is_the_one_that_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_round, "SECONDS", 0.0)
    names = ["b", "a", "10", "9"]
    state = {name: torch.randn(3, generator=seeds.torch_generator(0, name)) for name in names}
    sent = Update(
        7, 12, state, {"a/mask": torch.tensor([True, False])}, {"count": torch.tensor(3)},
        {"loss": 0.1, "none": float("nan")}, {"own/w": torch.ones(2, 2)},
    )  # fmt: skip
    assert list(partial_round.PartialRound(tmp_path, 4).merged([7], iter([sent]))) == [sent]
    (found,) = partial_round.PartialRound(tmp_path, 4).merged([7], iter(()))
    assert (found.client, found.num_samples) == (7, 12)
    for kind in ("weights", "masks", "statistics", "memory"):
        mine, theirs = getattr(found, kind), getattr(sent, kind)
        assert list(mine) == list(theirs), "sums over tensors depend on their order"
        assert all(torch.equal(mine[n], theirs[n]) and mine[n].dtype == theirs[n].dtype for n in mine)
    assert repr(found.metrics) == repr(sent.metrics)
    assert not partial_round.PartialRound(tmp_path, 5).found, "those of another round do not count"


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    for change in ({"seed": 6}, {"rounds": 2}, {"method": FedAvg(lr=0.01)}):
        with pytest.raises(InputError, match="holds another run"):
            run(tmp_path, **change)


def test_personal_state_survives_an_interruption(tmp_path: Path) -> None:
    local = Mortal(lr=0.05, batch_size=8, batch_norm="local")
    whole = run(tmp_path / "whole", method=local)
    cut_run(tmp_path / "cut", 3, method=local)
    assert final_bits(run(tmp_path / "cut", method=local)) == final_bits(whole)
    cut_run(tmp_path / "bad", 3, method=local)
    _flip(tmp_path / "bad" / "checkpoint" / "0002.safetensors")
    assert final_bits(run(tmp_path / "bad", method=local)) == final_bits(whole)


@dataclass(frozen=True)
class Ordered(Mortal):
    """Notes the order in which the server sees the model's tensors."""

    seen: ClassVar[list[list[str]]] = []

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        self.seen.append(list(server.weights))
        return super().aggregate(server, updates)


def test_a_resumed_server_sees_the_models_tensors_in_the_same_order(tmp_path: Path) -> None:
    Ordered.seen.clear()
    method = Ordered(lr=0.05, batch_size=8)
    cut_run(tmp_path, 2, method=method)
    run(tmp_path, method=method)
    assert len(Ordered.seen) == 4
    assert all(names == list(model_state(build(0))) for names in Ordered.seen), "sums depend on the order"


@dataclass(frozen=True)
class ServerMomentum(Mortal):
    """A server that remembers: the mean move of the clients is smoothed over rounds."""

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        mean = super().aggregate(server, updates).weights
        move = mean["head.weight"] - server.weights["head.weight"]
        smooth = 0.5 * server.memory.get("move", torch.zeros_like(move)) + move
        return Server(mean | {"head.weight": server.weights["head.weight"] + smooth}, {"move": smooth})


def test_the_servers_own_state_survives_an_interruption(tmp_path: Path) -> None:
    method = ServerMomentum(lr=0.05, batch_size=8)
    whole = run(tmp_path / "whole", method=method)
    assert final_bits(whole)[0] != final_bits(run(tmp_path / "plain"))[0]
    cut_run(tmp_path / "cut", 3, method=method)
    assert final_bits(run(tmp_path / "cut", method=method)) == final_bits(whole)


@pytest.mark.parametrize(
    "method", [METHOD, ServerMomentum(lr=0.05, batch_size=8), FedAvg(batch_norm="local")]
)
def test_a_run_that_starts_from_shared_rounds_has_the_bits_of_one_that_does_not(
    tmp_path: Path, method: FedAvg
) -> None:
    leaving = Clients(make_clients().datasets, last_round={0: 2}, after={1: make_data(5)}, changes_after=2)
    alone = run(tmp_path / "alone", method=method, clients=leaving, rounds=4)
    shared = run(tmp_path / "shared", method=method, rounds=2)
    first = [path.read_bytes() for path in sorted(shared.folder.rglob("*.*"))]
    started = run(tmp_path / "started", method=method, clients=leaving, rounds=4, start=shared)
    assert final_bits(started) == final_bits(alone)
    assert started.rounds == alone.rounds
    assert torch.equal(started.weights(1)["conv.weight"], alone.weights(1)["conv.weight"])
    assert [path.read_bytes() for path in sorted(shared.folder.rglob("*.*"))] == first


def test_a_run_that_was_stopped_after_its_shared_rounds_goes_on_without_them(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", method=MORTAL, rounds=4)
    start = run(tmp_path / "start", method=MORTAL, rounds=2)
    cut_run(tmp_path / "cut", 4, method=MORTAL, rounds=4, start=start)
    assert final_bits(run(tmp_path / "cut", method=MORTAL, rounds=4)) == final_bits(whole)


def test_rounds_of_another_run_cannot_be_shared(tmp_path: Path) -> None:
    start = run(tmp_path / "start", rounds=2)
    for wrong, message in (
        ({"seed": 6}, "holds another run"),
        ({"method": FedAvg(lr=0.01)}, "holds another run"),
        ({"rounds": 2}, "start has 2 rounds; allowed: fewer than 2"),
        ({"rounds": 4, "evaluate_every": 4}, "a multiple of evaluate_every = 4"),
    ):
        with pytest.raises(InputError, match=message):
            run(tmp_path / "new", **({"rounds": 3, "start": start} | wrong))
    _flip(start.folder / "global" / "round-0001.safetensors")
    with pytest.raises(InputError, match="absent or damaged"):
        run(tmp_path / "new", rounds=3, start=start)


@dataclass(frozen=True)
class PersonalHead(FedAvg):
    """Clients keep their head in the rounds up to ``until`` and share all of it afterwards."""

    until: int = 99
    starts: ClassVar[list[tuple[int, int, torch.Tensor]]] = []

    def train(self, task: Any, local: Local) -> dict[str, float]:
        head = local.model.state()["head.weight"]
        self.starts.append((local.round, local.client, head))
        return super().train(task, local)

    def masks(self, task: Any, local: Local) -> personal.Masks:
        return {"head.weight": torch.tensor(True)} if local.round <= self.until else {}


def test_clients_start_from_what_they_kept_and_are_evaluated_with_it(tmp_path: Path) -> None:
    PersonalHead.starts.clear()
    trajectory = run_rounds(
        TASK, PersonalHead(lr=0.05, batch_size=8), make_clients(), Rounds(3, 5, participation=0.67), tmp_path,
        evaluation=TEST, client_evaluation={0: "test", 1: "test", 2: "test"}, workers=1,
    )  # fmt: skip
    first: dict[int, torch.Tensor] = {}
    initial = trajectory.weights(0)["head.weight"]
    for _, client, head in PersonalHead.starts:
        assert torch.equal(head, initial) == (client not in first), (
            "the first start is global, later ones own"
        )
        first[client] = head
    assert torch.equal(trajectory.weights(3)["head.weight"], initial), "nobody shares the head"
    last = trajectory.metrics().query("round == 3 and metric == 'loss'").set_index("client")["value"]
    assert len({last[client] for client in (-1, 0, 1, 2)}) == 4, "personal models differ from the global one"


def test_what_a_client_stops_keeping_is_gone(tmp_path: Path) -> None:
    PersonalHead.starts.clear()
    trajectory = run(tmp_path, method=PersonalHead(lr=0.05, batch_size=8, until=1))
    for round, _, head in PersonalHead.starts:
        if round == 3:
            assert torch.equal(head, trajectory.weights(2)["head.weight"])


def test_batch_orders_and_dropout_differ_between_clients_rounds_and_epochs() -> None:
    seen: list[bytes] = []

    @dataclass(frozen=True)
    class Recording:
        size: int

        def __len__(self) -> int:
            return self.size

        def batch(self, indices: torch.Tensor) -> Any:
            seen.append(indices.numpy().tobytes())
            return DATA.batch(indices)

    method = FedAvg(lr=0.01, batch_size=20, local_epochs=2)
    start, losses = model_state(build(0)), set()
    for client, round in ((0, 1), (0, 2), (1, 1)):
        update = method.client_update(
            TASK, FlatModel(build(0)), client, Recording(20), Broadcast(round, start), {}, 0
        )
        losses.add(update.metrics["train_loss"])
    assert len(set(seen)) == 6, "three updates of two epochs"
    order = torch.arange(20)
    with seeds.torch_global(0, "dropout", 1, 0):
        one = build(0)(DATA.batch(order)[0])
    with seeds.torch_global(0, "dropout", 1, 1):
        two = build(0)(DATA.batch(order)[0])
    assert not torch.equal(one, two)
    assert len(losses) == 3


DATA = make_data(20)


def _update(client: int, samples: int, **weights: torch.Tensor) -> Update:
    return Update(client, samples, weights)


def test_batch_norm_statistics_are_averaged_by_samples_and_counters_take_the_largest() -> None:
    old = {"m": torch.zeros(2), "n": torch.tensor(0)}
    a = _update(0, 1, m=torch.tensor([1.0, 0.0]), n=torch.tensor(3))
    b = _update(1, 3, m=torch.tensor([5.0, 4.0]), n=torch.tensor(7))
    mean = weighted_mean([a, b], old)
    assert torch.equal(mean["m"], torch.tensor([4.0, 3.0]))
    assert mean["n"] == 7
    assert mean["n"].dtype == torch.int64


def test_aggregation_does_not_depend_on_the_order_of_clients() -> None:
    generator = torch.Generator().manual_seed(0)
    updates = [_update(i, i + 1, w=torch.randn(1000, generator=generator)) for i in range(9)]
    old = {"w": torch.zeros(1000)}
    forward, backward = weighted_mean(updates, old), weighted_mean(updates[::-1], old)
    assert torch.equal(forward["w"], backward["w"])
    exact = sum(u.num_samples * u.weights["w"].double() for u in updates) / 45
    assert torch.equal(forward["w"], exact.float())


def test_the_global_model_carries_the_clients_batch_norm_statistics(tmp_path: Path) -> None:
    trained = run(tmp_path / "g", rounds=1)
    assert not torch.equal(trained.weights(1)["norm.running_mean"], trained.weights(0)["norm.running_mean"])
    # The largest client: 33 samples are 4 batches of 8, and one sample that has no statistics of its own.
    assert trained.weights(1)["norm.num_batches_tracked"] == 4
    frozen = run(tmp_path / "f", rounds=1, method=replace(METHOD, batch_norm="frozen"))
    assert torch.equal(frozen.weights(1)["norm.running_mean"], frozen.weights(0)["norm.running_mean"])
    local = run(tmp_path / "l", rounds=1, method=replace(METHOD, batch_norm="local"))
    assert torch.equal(local.weights(1)["norm.running_mean"], local.weights(0)["norm.running_mean"])
    assert not torch.equal(local.weights(1)["norm.weight"], local.weights(0)["norm.weight"])


def test_a_client_without_samples_has_weight_zero(tmp_path: Path) -> None:
    with_empty = run(tmp_path / "1", clients=make_clients((20, 33, 0)))
    without = run(tmp_path / "2", clients=make_clients((20, 33)))
    assert torch.equal(with_empty.weights(3)["head.weight"], without.weights(3)["head.weight"])


def test_a_round_without_any_sample_is_an_error_that_names_round_and_clients(tmp_path: Path) -> None:
    with pytest.raises(EmptyRound, match="clients 0, 1 all have 0") as error:
        run(tmp_path, clients=make_clients((0, 0)))
    assert "in round 1" in error.value.__notes__


def test_a_single_sample_can_be_trained_on_with_batch_norm(tmp_path: Path) -> None:
    trajectory = run(tmp_path, clients=make_clients((1, 9)))
    assert all(torch.isfinite(tensor).all() for tensor in trajectory.weights(3).values())


class _TwoArguments(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def _local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("cannot be pickled")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (lambda: _Kill("plain"), "plain"),
        (lambda: _TwoArguments("two", "arguments"), "two arguments"),
        (_local_error, "cannot be pickled"),
    ],
)
def test_a_clients_error_surfaces_with_client_and_round(
    tmp_path: Path, workers: int, error: Callable[[], Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mortal, "fatal", 2)
    monkeypatch.setattr(Mortal, "error", staticmethod(error))
    with pytest.raises(Exception, match=text) as caught:
        run(tmp_path, method=MORTAL, workers=workers)
    assert "in client 1, round 2" in caught.value.__notes__


def test_a_killed_worker_is_an_error_that_names_round_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()

    def die() -> Exception:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return _Kill("not in a worker")

    monkeypatch.setattr(Mortal, "fatal", 2)
    monkeypatch.setattr(Mortal, "error", staticmethod(die))
    with pytest.raises(WorkerDied, match=r"died in round 2 while clients .*1"):
        run(tmp_path, method=MORTAL, workers=2)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(_KILLED.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], start_new_session=True)
    deadline = time.monotonic() + 90
    while len(list((tmp_path / "global").glob("*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []


def test_divergence_is_an_error_that_names_client_and_round(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"client \d, round 1"):
        run(tmp_path, method=FedAvg(lr=1e20))


def test_the_optimizer_starts_anew_in_each_round() -> None:
    """The second update from the same broadcast equals the first: nothing is carried over."""
    data, start = make_data(20), model_state(build(0))
    model = FlatModel(build(0))
    updates = [METHOD.client_update(TASK, model, 0, data, Broadcast(1, start), {}, 0) for _ in range(2)]
    for name, tensor in updates[0].weights.items():
        assert torch.equal(tensor, updates[1].weights[name])


def test_a_client_update_does_not_change_its_arguments() -> None:
    start = model_state(build(0))
    before = {name: tensor.clone() for name, tensor in start.items()}
    METHOD.client_update(TASK, FlatModel(build(3)), 0, make_data(20), Broadcast(1, start), {}, 0)
    assert all(torch.equal(start[name], before[name]) for name in start)


def test_fedprox_with_mu_zero_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    avg = run(tmp_path / "a")
    prox = run(tmp_path / "p", method=FedProx(lr=0.05, batch_size=8, mu=0.0))
    assert final_bits(avg) == final_bits(prox)


def test_fedprox_adds_the_gradient_of_its_proximal_term() -> None:
    model = FlatModel(build(0))
    start = model.values.clone()
    model.values.add_(0.5)
    local = Local(0, 1, 0, model, start, Broadcast(1, {}), {}, make_data(4), 1)
    FedProx(mu=0.2).correct_gradient(local)
    assert torch.allclose(model.grad, torch.full_like(start, 0.2 * 0.5))


def test_fedprox_keeps_clients_nearer_to_the_global_model() -> None:
    start, data = model_state(build(0)), make_data(60)
    distance = {}
    for mu in (0.0, 1.0, 10.0):
        method = FedProx(lr=0.02, batch_size=8, local_epochs=5, weight_decay=0.0, momentum=0.0, mu=mu)
        update = method.client_update(TASK, FlatModel(build(0)), 0, data, Broadcast(1, start), {}, 0)
        distance[mu] = float((update.weights["head.weight"] - start["head.weight"]).norm())
    assert distance[10.0] < distance[1.0] < distance[0.0]


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_sgd_on_the_flat_model_has_the_bits_of_torch_sgd(momentum: float, weight_decay: float) -> None:
    plain, flat = build(0), FlatModel(build(0))
    images, labels = make_data(8).batch(torch.arange(8))
    plain.to(memory_format=torch.channels_last).eval()
    flat.module.eval()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    ours = SGD(momentum, weight_decay)
    for _ in range(4):
        flat.grad.zero_()
        plain.zero_grad()
        for model in (plain, flat.module):
            nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        ours.step(flat.values, flat.grad, 0.1)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(flat.state()[name], tensor), name


def test_flat_model_copies_and_round_trips() -> None:
    flat = FlatModel(build(0))
    state = flat.state()
    assert all(torch.equal(state[name], tensor) for name, tensor in build(0).state_dict().items())
    assert torch.equal(flat.vector_of(flat.named(flat.values)), flat.values)
    flat.values.add_(1)
    assert torch.equal(state["head.weight"], build(0).state_dict()["head.weight"]), "state() must be a copy"
    assert torch.equal(flat.module.state_dict()["head.weight"], state["head.weight"] + 1), (
        "parameters are views"
    )
    flat.load(state)
    assert all(torch.equal(state[name], tensor) for name, tensor in flat.module.state_dict().items())


def test_a_state_of_another_model_is_refused() -> None:
    flat = FlatModel(build(0))
    state = flat.state()
    with pytest.raises(InputError, match="unexpected"):
        flat.load(state | {"extra": torch.zeros(1)})
    with pytest.raises(InputError, match=r"head\.bias has shape \(4,\)"):
        flat.load(state | {"head.bias": torch.zeros(4)})


def test_masked_tensors_are_kept_bit_equal_and_not_sent() -> None:
    state = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    element = torch.tensor([True, False, True, False])
    chosen = {"a": torch.tensor(True), "b": element}
    sent = personal.shared_part(state, chosen)
    assert sent.keys() == {"b"}
    assert torch.equal(sent["b"], state["b"][~element])
    shared = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    mixed = personal.inject(shared, state, chosen)
    assert torch.equal(mixed["a"], state["a"])
    assert torch.equal(mixed["b"], torch.where(element, state["b"], 0.0))


def test_masked_aggregation_averages_over_the_sharers_only() -> None:
    old = {"w": torch.tensor([9.0, 9.0, 9.0])}
    mask = torch.tensor([True, False, True])
    both = torch.tensor([False, False, True])
    a = Update(0, 1, {"w": torch.tensor([4.0])}, {"w": mask})
    b = Update(1, 3, {"w": torch.tensor([1.0, 8.0])}, {"w": both})
    assert torch.equal(weighted_mean([a, b], old)["w"], torch.tensor([1.0, 7.0, 9.0]))
    kept = Update(2, 5, {}, {"w": torch.tensor(True)})
    assert torch.equal(weighted_mean([a, b, kept], old)["w"], torch.tensor([1.0, 7.0, 9.0]))
    assert torch.equal(weighted_mean([kept], old)["w"], old["w"])


def test_wrong_masks_are_refused() -> None:
    state = {"w": torch.zeros(3)}
    for mask in ({"v": torch.tensor(True)}, {"w": torch.zeros(2, dtype=torch.bool)}, {"w": torch.zeros(3)}):
        with pytest.raises(InputError):
            personal.check(mask, state)


def test_masks_travel_as_bits() -> None:
    chosen = {f"layer{i}": torch.tensor(i % 2 == 0) for i in range(10)} | {
        "w": torch.ones(17, dtype=torch.bool)
    }
    packed = personal.pack(chosen)
    assert packed["layers"].numel() == 2
    assert packed["w"].numel() == 3


def test_the_ledger_counts_what_is_serialised(tmp_path: Path) -> None:
    from safetensors.torch import save

    trajectory = run(tmp_path, rounds=2)
    ledger = trajectory.ledger().set_index(["round", "direction", "kind"])
    size = len(save(trajectory.weights(1)))
    assert ledger.loc[(1, "up", "weights"), "bytes"] == 3 * size
    assert ledger.loc[(2, "down", "weights"), "bytes"] == 3 * size
    assert ledger.loc[(1, "up", "statistics"), "bytes"] == 0
    assert serialized_bytes({}) == 0
    local = run(tmp_path / "local", rounds=1, method=replace(METHOD, batch_norm="local")).ledger()
    by_kind = local.set_index(["direction", "kind"])["bytes"]
    assert by_kind["up", "weights"] < 3 * size
    assert by_kind["up", "masks"] > 0


def test_every_clients_metrics_are_kept_as_rows(tmp_path: Path) -> None:
    trajectory = run_rounds(
        TASK, METHOD, make_clients(), Rounds(2, 0), tmp_path, workers=1,
        evaluation={"test": make_data(40, 7), "mine": make_data(30, 8)}, client_evaluation={1: "mine"},
    )  # fmt: skip
    rows = trajectory.metrics()
    train = rows[(rows.split == "train") & (rows.metric == "train_loss")]
    assert sorted(zip(train["round"], train["client"])) == [(r, c) for r in (1, 2) for c in (0, 1, 2)]
    assert set(rows[rows.client == -1].split) == {"test", "mine"}
    personal_rows = rows[(rows.client == 1) & (rows.split == "mine")]
    assert {"accuracy", "macro_f1", "f1_0", "loss"} <= set(personal_rows.metric)


def test_the_federation_learns(tmp_path: Path) -> None:
    rows = run(tmp_path, rounds=15).metrics()
    accuracy = rows[(rows.metric == "accuracy")].set_index("round")["value"]
    assert accuracy[15] > 0.9 > 0.5 > 1 / 3


def test_departed_clients_take_no_part_and_replaced_data_are_used(tmp_path: Path) -> None:
    datasets = [make_data(20), make_data(33, 1)]
    clients = Clients(datasets, last_round={0: 1}, after={1: make_data(9, 2)}, changes_after=2)
    rows = run(tmp_path, clients=clients).metrics()
    samples = rows[rows.metric == "samples"]
    assert [(r, c, int(v)) for r, c, v in zip(samples["round"], samples["client"], samples["value"])] == [
        (1, 0, 20), (1, 1, 33), (2, 1, 33), (3, 1, 9),
    ]  # fmt: skip


def test_sampling_of_clients_is_fixed_by_seed_and_round_and_fair() -> None:
    assert sample_clients(range(10), 0.3, 0, 4) == sample_clients(range(10), 0.3, 0, 4)
    chosen = [sample_clients(range(10), 0.3, 0, r) for r in range(1, 401)]
    assert {len(clients) for clients in chosen} == {3}
    counts = np.bincount([client for clients in chosen for client in clients], minlength=10)
    assert counts.min() > 80
    assert sample_clients(range(10), 0.01, 0, 1) != ()
    for wrong in (0, 1.5, -0.1):
        with pytest.raises(InputError, match="participation"):
            sample_clients(range(3), wrong, 0, 1)
    with pytest.raises(InputError, match="round 3 has no client"):
        sample_clients([], 1.0, 0, 3)


def test_a_federation_that_everybody_leaves_is_refused_before_it_starts(tmp_path: Path) -> None:
    clients = Clients([make_data(9)], last_round={0: 2})
    with pytest.raises(InputError, match="round 3 of 3 has no client"):
        run(tmp_path, clients=clients)
    assert not list(tmp_path.iterdir())


def test_the_global_model_is_evaluated_as_often_as_asked(tmp_path: Path) -> None:
    rows = run(tmp_path, rounds=5, evaluate_every=2).metrics()
    assert sorted(rows[rows["split"] == "test"]["round"].unique()) == [2, 4, 5]


def test_states_go_by_name_not_by_position() -> None:
    flat = FlatModel(build(0))
    state = FlatModel(build(1)).state()
    flat.load(dict(reversed(state.items())))
    assert all(torch.equal(tensor, state[name]) for name, tensor in flat.state().items())
    backwards = [Update(i, 1, dict(reversed(state.items()))) for i in range(2)]
    mean = weighted_mean(backwards, state)
    assert all(torch.equal(mean[name], state[name]) for name in state)


def test_a_stream_of_updates_has_to_ascend() -> None:
    updates = [_update(1, 1, w=torch.zeros(1)), _update(0, 1, w=torch.zeros(1))]
    with pytest.raises(ValueError, match="client 0 came after client 1"):
        weighted_mean(iter(updates), {"w": torch.zeros(1)})


@pytest.mark.parametrize(("parts", "most"), [(8, 100), (8, 2), (1, 100), (100, 100)])
def test_shares_hold_every_client_once_in_order(parts: int, most: int) -> None:
    sizes = {client: size for client, size in enumerate([5, 0, 90, 1, 1, 1, 40, 40, 3])}
    shares = _shares(list(sizes), sizes, parts, most)
    assert [client for share in shares for client in share] == list(sizes)
    assert max(map(len, shares)) <= most


_PEAK = """
    import resource, sys, tempfile
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import torch
    from torch import nn
    import test_federation as t

    class Wide(nn.Module):  # 8 MB
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(36, 50_000), nn.Linear(50_000, 3)

        def forward(self, images):
            return self.head(torch.relu(self.hidden(images.flatten(1))))

    task = t.Classification(lambda seed: Wide(), 3)
    rounds, clients = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        settings = t.Rounds(rounds, 0, keep="last")
        data = t.Clients([t.make_data(2)] * clients)
        t.run_rounds(task, t.METHOD, data, settings, Path(folder), workers=1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_grows_neither_with_rounds_nor_with_clients() -> None:
    """Peak memory of whole processes with a model of 8 MB, in MiB."""

    def peak(rounds: int, clients: int) -> int:
        script = textwrap.dedent(_PEAK.format(tests=str(Path(__file__).parent)))
        command = [sys.executable, "-c", script, str(rounds), str(clients)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few = peak(2, 3)
    assert peak(20, 3) < few + 60, "18 more rounds would keep 144 MB"
    assert peak(2, 40) < few + 60, "37 more clients would keep 296 MB"


def test_only_the_last_model_is_kept_on_request(tmp_path: Path) -> None:
    assert run(tmp_path, keep="last").rounds == (3,)
    with pytest.raises(InputError, match="round is 2"):
        run(tmp_path, keep="last").weights(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0, "seed": 0}, "rounds is 0"),
        ({"rounds": 2.0, "seed": 0}, "rounds is 2.0"),
        ({"rounds": 1, "seed": "a"}, "seed is 'a'"),
        ({"rounds": 1, "seed": -1}, "seed is -1"),
        ({"rounds": 1, "seed": 0, "participation": 0.0}, r"participation is 0\.0"),
        ({"rounds": 1, "seed": 0, "keep": "some"}, "keep is 'some'"),
        ({"rounds": 1, "seed": 0, "evaluate_every": 0}, "evaluate_every is 0"),
    ],
)
def test_bad_settings_are_refused_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rounds(**settings)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no GPU is found"):
        Rounds(1, 0, device="cuda")


@pytest.mark.parametrize(
    "wrong", [{"lr": 0.0}, {"momentum": 1.0}, {"local_epochs": 0}, {"batch_size": 0}, {"batch_norm": "mine"}]
)
def test_bad_method_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is"):
        FedAvg(**wrong)
    with pytest.raises(InputError, match="mu is -1"):
        FedProx(mu=-1)


def test_worker_count_never_exceeds_the_request_or_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count(3, 10) == 3
    assert worker_count(8, 2) == 2
    assert worker_count(2, 10, device="cuda") == 1
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    assert worker_count(None, 10) == 1
    for wrong in (0, -1, True, "two", "²"):
        with pytest.raises(InputError, match="workers is"):
            worker_count(wrong, 4)  # type: ignore[arg-type]


def test_scores_agree_with_a_count_by_hand() -> None:
    scores = classification_scores(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0]), 4)
    assert scores["accuracy"] == pytest.approx(0.6)
    assert scores["f1_0"] == pytest.approx(2 * 1 / (2 + 2))
    assert scores["f1_1"] == pytest.approx(2 * 2 / (2 + 3))
    assert scores["f1_2"] == scores["f1_3"] == 0
    assert scores["recall_1"] == 1
    assert scores["macro_f1"] == pytest.approx((0.5 + 0.8 + 0) / 3)
    draw = np.random.default_rng(0)
    labels, predicted = draw.integers(0, 5, 200), draw.integers(0, 5, 200)
    found = classification_scores(labels, predicted, 5)
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert found["recall_3"] == pytest.approx(recall_score(labels, predicted, average=None)[3])


def test_streams_are_independent_and_repeatable() -> None:
    assert seeds.integer(0, "a", 1) == seeds.integer(0, "a", 1)
    values = {seeds.integer(s, *p) for s in range(3) for p in ((), ("a",), (1,), ("1",), ("a", 1), ("a1",))}
    assert len(values) == 18
    for wrong in (-1, True, 0.5, "x"):
        with pytest.raises(InputError, match="seed is"):
            seeds.integer(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="named by"):
        seeds.integer(0, 1.5)  # type: ignore[arg-type]
