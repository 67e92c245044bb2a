"""The round loop: what a result may and may not depend on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score
from torch import nn

from fedlib import seeds
from fedlib.data.tensors import Normalizer
from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.aggregation import EmptyRound, weighted_mean
from fedlib.federation.engine import worker_count
from fedlib.federation.messages import Broadcast, Update, serialized_bytes
from fedlib.federation.model_state import FlatModel, model_state
from fedlib.federation.population import Clients, sample_clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
from fedlib.federation.tasks import Classification, ImageData, classification_scores
from fedlib.methods.federated.fedavg import FedAvg, Local
from fedlib.methods.federated.fedprox import FedProx


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
class _DiesInRound(FedAvg):
    """Stops in the middle of a round, after its first client."""

    fatal: int = 2

    def loss(self, task: Any, local: Local, batch: Any) -> torch.Tensor:
        if local.round == self.fatal and local.client == 1:
            raise _Kill
        return super().loss(task, local, batch)


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, fatal: int) -> None:
    whole = run(tmp_path / "whole")
    with pytest.raises(_Kill):
        run(tmp_path / "cut", method=_DiesInRound(lr=0.05, batch_size=8, fatal=fatal))
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


def test_a_damaged_checkpoint_is_not_read(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    with pytest.raises(_Kill):
        run(tmp_path / "cut", method=_DiesInRound(lr=0.05, batch_size=8, fatal=3))
    path = tmp_path / "cut" / "global" / "round-0002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert final_bits(run(tmp_path / "cut")) == final_bits(whole)


def test_personal_state_survives_an_interruption(tmp_path: Path) -> None:
    local = FedAvg(lr=0.05, batch_size=8, batch_norm="local")
    whole = run(tmp_path / "whole", method=local)
    with pytest.raises(_Kill):
        run(tmp_path / "cut", method=_DiesInRound(lr=0.05, batch_size=8, batch_norm="local", fatal=3))
    assert final_bits(run(tmp_path / "cut", method=local)) == final_bits(whole)


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clients_error_surfaces_unchanged_with_client_and_round(tmp_path: Path, workers: int) -> None:
    with pytest.raises(_Kill) as error:
        run(tmp_path, method=_DiesInRound(fatal=2), workers=workers)
    assert "in client 1, round 2" in error.value.__notes__


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
    local = Local(0, 1, 0, model, start, Broadcast(1, {}), {}, make_data(4))
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
    method = FedAvg(lr=0.1, momentum=momentum, weight_decay=weight_decay)
    velocity = None
    for _ in range(4):
        flat.grad.zero_()
        plain.zero_grad()
        for model in (plain, flat.module):
            nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        velocity = method.sgd_step(flat, velocity)
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


def test_memory_of_a_run_does_not_grow_with_rounds(tmp_path: Path) -> None:
    def growth(rounds: int) -> int:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        run(tmp_path / str(rounds), rounds=rounds)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return after - before

    growth(2)  # what the first run of a process loads
    one_model = sum(tensor.nbytes for tensor in model_state(build(0)).values())
    assert growth(60) - growth(6) < 54 * one_model, "a round leaves less behind than one small model"


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
    for wrong in (0, -1, True, "two"):
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
