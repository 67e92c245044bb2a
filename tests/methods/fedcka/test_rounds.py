"""Whole rounds of FedCKA on a small CNN: limits, averages over sharers, what clients keep."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_clients import build, client

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.aggregation import weighted_mean
from fedlib.federation.memories import client_memories
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
from fedlib.federation.tasks import Classification
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.fedcka.scores import Scoring
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.federated.own_domain import OwnDomain

TASK = Classification(build, 3)
COMMON: dict[str, Any] = {"lr": 0.05, "batch_size": 8, "total_rounds": 3}


def federate(method: FedAvg, folder: Path, rounds: int = 3, workers: int = 1) -> Trajectory:
    return run_rounds(
        TASK, method, Clients([client(0), client(1, 16), client(2, 8)]), Rounds(rounds, 0), folder,
        evaluation={"all": client(3)}, client_evaluation={0: "all", 1: "all", 2: "all"}, workers=workers,
    )  # fmt: skip


def bits(trajectory: Trajectory, round: int = 3) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in trajectory.weights(round).items()}


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"mode": "percentage", "rho": 0.0, "warmup_rounds": 0}])
def test_zero_is_fedavg_bit_for_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = federate(FedAvg(**COMMON), tmp_path / "plain")
    assert bits(federate(FedCKA(**COMMON, **options), tmp_path / "cka")) == bits(plain)


def test_everything_personal_is_training_alone(tmp_path: Path) -> None:
    whole = FedCKA(
        **COMMON, mode="percentage", rho=1.0, schedule="per_round", warmup_rounds=0, exact_limits=True
    )
    together = federate(whole, tmp_path / "together")
    assert bits(together) == bits(together, 0), "nobody shares, so the global model stays"
    alone = run_rounds(
        TASK, whole, Clients([client(0)]), Rounds(3, 0), tmp_path / "alone",
        evaluation={"all": client(3)}, client_evaluation={0: "all"}, workers=1,
    )  # fmt: skip
    scores = [
        t.metrics().query("client == 0 and split == 'all' and metric == 'loss'")["value"].tolist()
        for t in (together, alone)
    ]
    assert scores[0] == scores[1]


def test_personal_layers_are_not_sent_and_the_share_is_logged(tmp_path: Path) -> None:
    trajectory = federate(FedCKA(**COMMON, tau=0.999), tmp_path)
    log = trajectory.metrics()
    share = log.query("metric == 'personal_share'").set_index(["round", "client"])["value"]
    assert set(share.index.get_level_values("round")) == {2, 3}, "the first round is FedAvg"
    assert 0 < share.mean() < 1
    sent = trajectory.ledger().query("direction == 'up' and kind == 'weights'").set_index("round")["bytes"]
    assert sent[2] < sent[1]
    assert log["metric"].str.startswith("cka/").any()


def test_the_number_of_workers_changes_no_bit(tmp_path: Path) -> None:
    method = FedCKA(**COMMON, tau=0.97)
    one, two = federate(method, tmp_path / "1"), federate(method, tmp_path / "2", workers=2)
    assert bits(one) == bits(two)
    assert one.metrics().equals(two.metrics())


def test_what_clients_keep_is_read_from_the_end_of_a_run_and_never_guessed(tmp_path: Path) -> None:
    method = FedCKA(**COMMON, tau=0.97)
    trajectory = federate(method, tmp_path)
    kept = client_memories(trajectory)
    log = trajectory.metrics().query("round == 3")
    masked = log[(log["metric"].str.startswith("personal/")) & (log["value"] == 1)]
    assert len(masked)
    for number in range(3):
        own = {name.rpartition(".")[0] for name in kept[number] if name.startswith("own/")}
        of_client = masked[masked["client"] == number]["metric"]
        assert {f"own/{name.removeprefix('personal/')}" for name in of_client} == own
        model = build(0)
        model.load_state_dict(method.personal_weights(trajectory.weights(3), kept[number]))
        model.eval()
        with torch.inference_mode():
            loss = float(TASK.loss(model, client(3).batch(torch.arange(24))))
        said = log.query("client == @number and split == 'all' and metric == 'loss'")["value"].item()
        assert loss == pytest.approx(said, rel=1e-5)
    path = tmp_path / "checkpoint" / "0003.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="no whole checkpoint"):
        client_memories(trajectory)
    path.unlink()
    with pytest.raises(InputError, match="no whole checkpoint"):
        client_memories(trajectory)
    assert client_memories(federate(FedAvg(**COMMON), tmp_path / "plain")) == {}


def test_a_layer_that_nobody_shares_keeps_its_global_value(tmp_path: Path) -> None:
    trajectory = federate(FedCKA(**COMMON, tau=1.0, warmup_rounds=0), tmp_path, rounds=1)
    before, after = trajectory.weights(0), trajectory.weights(1)
    log = trajectory.metrics()
    kept = log[log["metric"].str.startswith("personal/")].groupby("metric")["value"].min()
    nobody = [name.removeprefix("personal/") for name, value in kept.items() if value == 1]
    assert nobody, "with tau = 1 every changed layer is personal"
    same: State = {name: t for name, t in after.items() if name.rpartition(".")[0] in nobody}
    assert all(torch.equal(t, before[name]) for name, t in same.items())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tau": 2.0}, "tau"),
        ({"mode": "cka"}, "mode"),
        ({"inputs": 0}, "inputs"),
        ({"ramp_rounds": 0}, "ramp"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        FedCKA(**options)


def test_all_layers_personal_is_own_domain_training_bit_for_bit(tmp_path: Path) -> None:
    whole = FedCKA(
        **COMMON, mode="percentage", rho=1.0, schedule="per_round", warmup_rounds=0, exact_limits=True
    )
    found = []
    for method, name in ((whole, "cka"), (OwnDomain(**COMMON), "own")):
        trajectory = federate(method, tmp_path / name)
        log = trajectory.metrics()
        found.append(log[log["metric"].isin(["train_loss", "loss", "accuracy"])].reset_index(drop=True))
    assert len(found[0])
    assert found[0].equals(found[1])


def test_one_block_for_each_layer_changes_no_bit(tmp_path: Path) -> None:
    names = tuple(
        name for name, part in build(0).named_modules() if part._parameters.get("weight") is not None
    )
    assert len(names) == 7
    layers, blocks = (
        federate(FedCKA(**COMMON, tau=0.97, blocks=chosen), tmp_path / str(len(chosen)))
        for chosen in ((), names)
    )
    assert bits(layers) == bits(blocks)
    assert layers.metrics().equals(blocks.metrics())


def test_a_block_is_kept_or_shared_as_a_whole(tmp_path: Path) -> None:
    # the backbone gives one row an image, so images are the rows
    method = FedCKA(
        **COMMON, mode="percentage", schedule="once", rho=0.001, warmup_rounds=0,
        blocks=("backbone", "head"), scoring=Scoring(rows="pooled"),
    )  # fmt: skip
    model, start = FlatModel(build(0)), model_state(build(0))
    update = method.client_update(TASK, model, 0, client(0), Broadcast(1, start), {}, 0)
    assert {name for name in update.metrics if name.startswith("cka/")} == {"cka/backbone", "cka/head"}
    (kept,) = (name for name in ("backbone", "head") if update.metrics[f"personal/{name}"])
    assert update.metrics[f"cka/{kept}"] == min(update.metrics["cka/backbone"], update.metrics["cka/head"])
    inside = {name for name in start if name.startswith(f"{kept}.")}
    assert set(update.masks) == inside, "statistics of BatchNorm too"
    assert set(update.weights) == set(start) - inside
    sizes = {
        name: sum(p.numel() for p in getattr(build(0), name).parameters()) for name in ("backbone", "head")
    }
    assert update.metrics["personal_share"] == sizes[kept] / sum(sizes.values())


def test_blocks_that_are_none_are_refused_in_the_first_round() -> None:
    method = FedCKA(**COMMON, blocks=("backbone",), warmup_rounds=2)
    with pytest.raises(InputError, match="head.weight is in no block"):
        method.client_update(
            TASK, FlatModel(build(0)), 0, client(0), Broadcast(1, model_state(build(0))), {}, 0
        )


# --- averages and injection -----------------------------------------------------------------------------------


def updates_with_masks() -> tuple[State, list[Update]]:
    """Three clients; ``a`` is shared by all, ``b`` by the first and third, ``c`` by the second, ``d`` by none."""
    generator = seeds.torch_generator(0, "updates")
    previous = {name: torch.randn(7, 5, generator=generator) for name in "abcd"}
    keeps = ["cd", "bd", "cd"]
    found = []
    for number, kept in enumerate(keeps):
        weights = {name: torch.randn(7, 5, generator=generator) for name in "abcd" if name not in kept}
        masks = {name: torch.tensor(True) for name in kept}
        found.append(Update(number, 3 + 4 * number, weights, masks))
    return previous, found


def test_a_shared_layer_is_a_weighted_mean_of_its_sharers() -> None:
    previous, updates = updates_with_masks()
    mean = weighted_mean(updates, previous)
    for name, sharers in (("a", updates), ("b", [updates[0], updates[2]])):
        stack = torch.stack([update.weights[name] for update in sharers])
        assert bool((mean[name] >= stack.amin(0)).all())
        assert bool((mean[name] <= stack.amax(0)).all())
        size = torch.tensor([update.num_samples for update in sharers], dtype=torch.float64)
        wanted = torch.einsum("k,kij->ij", size / size.sum(), stack.double())
        assert torch.allclose(mean[name].double(), wanted, atol=1e-7)
    assert torch.equal(mean["c"], updates[1].weights["c"]), "a single sharer's tensor, bit for bit"
    assert torch.equal(mean["d"], previous["d"]), "nobody shares it"


def test_neither_the_order_of_clients_nor_the_scale_of_their_sizes_matters() -> None:
    previous, updates = updates_with_masks()
    mean = weighted_mean(updates, previous)
    for order in itertools.permutations(updates):
        assert all(torch.equal(t, mean[name]) for name, t in weighted_mean(order, previous).items())
    larger = [Update(u.client, 10 * u.num_samples, u.weights, u.masks) for u in updates]
    renamed = [Update(2 - u.client, u.num_samples, u.weights, u.masks) for u in updates]
    for others in (larger, renamed):
        for name, tensor in weighted_mean(others, previous).items():
            assert torch.allclose(tensor, mean[name], rtol=0, atol=1e-6)


def test_equal_models_average_to_the_same_bits() -> None:
    state = {"w": torch.randn(300, generator=seeds.torch_generator(0, "same"))}
    same = [Update(k, 3 * k + 1, state) for k in range(4)]
    assert torch.equal(weighted_mean(same, {"w": torch.zeros(300)})["w"], state["w"])


def test_personal_layers_keep_the_trained_bits_and_shared_ones_take_the_servers() -> None:
    method = FedCKA(**COMMON, tau=0.97, warmup_rounds=0)
    start = model_state(build(0))
    trained: dict[int, State] = {}

    class Kept(FedCKA):
        def statistics(self, task: Any, local: Any) -> State:
            trained[local.client] = local.model.state()
            return super().statistics(task, local)

    model = FlatModel(build(0))
    kept = Kept(**COMMON, tau=0.97, warmup_rounds=0)
    updates = [
        kept.client_update(TASK, model, k, client(k, 24 - 8 * k), Broadcast(1, start), {}, 0)
        for k in range(3)
    ]
    weights = weighted_mean(updates, start)
    personal = 0
    for update in updates:
        mine = method.personal_weights(weights, update.memory)
        masked = {name for name, mask in update.masks.items() if bool(mask)}
        personal += len(masked)
        for name, tensor in mine.items():
            source = trained[update.client] if name in masked else weights
            assert torch.equal(tensor, source[name])
        owners = {name.rpartition(".")[0] for name in masked}
        assert masked == {name for name in start if name.rpartition(".")[0] in owners}, "whole layers"
        assert not masked & set(update.weights)
    assert personal


# --- clients at the edge --------------------------------------------------------------------------------------


def test_a_client_with_one_or_no_sample_is_scored_on_what_it_has() -> None:
    method = FedCKA(**COMMON, tau=0.97, warmup_rounds=0)
    start = model_state(build(0))
    for size in (0, 1):
        data = client(0).subset(np.arange(size))
        found = method.client_update(TASK, FlatModel(build(0)), 0, data, Broadcast(1, start), {}, 0)
        assert any(name.startswith("cka/") for name in found.metrics) == bool(size)
        assert all(np.isfinite(value) for value in found.metrics.values())


def test_one_scratch_model_serves_any_order_of_clients() -> None:
    method = FedCKA(**COMMON, tau=0.97, warmup_rounds=0)
    start = model_state(build(0))
    results: list[list[Any]] = []
    for order in ((0, 1, 2), (2, 0, 1)):
        model = FlatModel(build(0))
        found = {
            k: method.client_update(TASK, model, k, client(k), Broadcast(1, start), {}, 0) for k in order
        }
        results.append([found[k].metrics for k in range(3)])
    assert results[0] == results[1]
