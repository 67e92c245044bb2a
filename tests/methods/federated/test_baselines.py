"""Invariants of the federated baselines on a small CNN."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_clients import build, client
from torch import nn

from fedlib import models, seeds
from fedlib.errors import InputError
from fedlib.federation import partial_round
from fedlib.federation.engine import Work
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, Trajectory, run_rounds
from fedlib.federation.tasks import Classification, ImageData
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.federated.fedavg import FedAvg, Local
from fedlib.methods.federated.fedbn import FedBN
from fedlib.methods.federated.feddyn import FedDyn
from fedlib.methods.federated.fedmc import FedMC
from fedlib.methods.federated.fedprox import FedProx
from fedlib.methods.federated.fedrep import FedRep
from fedlib.methods.federated.fedselect import FedSelect
from fedlib.methods.federated.optimizers import SGD, AdamW
from fedlib.methods.federated.pcgrad import PCGrad, project
from fedlib.methods.federated.scaffold import Scaffold


def build_plain(seed: int) -> models.Classifier:
    return models.build("cnn3", num_classes=3, in_channels=1, image_size=8, seed=seed)


TASK, PLAIN = Classification(build, 3), Classification(build_plain, 3)
SGD_ONLY: dict[str, Any] = {"lr": 0.02, "batch_size": 8, "momentum": 0.0, "weight_decay": 0.0}


def federate(
    method: FedAvg,
    folder: Path,
    rounds: int = 2,
    task: Classification = TASK,
    parts: Sequence[ImageData] = (),
) -> Trajectory:
    parts = parts or [client(0), client(1, 16), client(2, 8)]
    return run_rounds(task, method, Clients(list(parts)), Rounds(rounds, 0), folder, workers=1)


def bits(trajectory: Trajectory, round: int = 2) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in trajectory.weights(round).items()}


def update_of(
    method: FedAvg, round: int = 1, memory: State | None = None, start: State | None = None
) -> Update:
    start = start or model_state(build(0))
    return method.client_update(
        TASK, FlatModel(build(0)), 0, client(0), Broadcast(round, start), memory or {}, 0
    )


class _Cut(Exception):
    pass


@pytest.mark.parametrize(
    "method",
    [
        FedProx(**SGD_ONLY, mu=0.1),
        FedBN(**SGD_ONLY),
        FedRep(**SGD_ONLY),
        FedSelect(**SGD_ONLY, select=0.2, final=0.4, warmup_rounds=1),
        FedMC(**SGD_ONLY, select=0.2, final=0.4, warmup_rounds=1),
        Scaffold(**SGD_ONLY),
        FedDyn(**SGD_ONLY, warmup_rounds=1),
        PCGrad(**SGD_ONLY, granularity="model"),
        FedCKA(**SGD_ONLY, mode="percentage", rho=0.4, ramp_rounds=2, inputs=4),
        FedAvg(lr=0.01, batch_size=8, optimizer="adamw", optimizer_state="keep"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_method_goes_on_from_stored_rounds_and_updates_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: FedAvg
) -> None:
    monkeypatch.setattr(partial_round, "SECONDS", 0.0)
    whole = federate(method, tmp_path / "whole", rounds=3)
    work = Work.update

    def update(self: Work, client: int, broadcast: Broadcast, memory: State) -> Update:
        if (broadcast.round, client) == (3, 1):
            raise _Cut
        return work(self, client, broadcast, memory)

    with monkeypatch.context() as patch:
        patch.setattr(Work, "update", update)
        with pytest.raises(_Cut):
            federate(method, tmp_path / "cut", rounds=3)
    assert (tmp_path / "cut" / "checkpoint" / "round" / "client-0.safetensors").exists()
    again = federate(method, tmp_path / "cut", rounds=3)
    assert bits(again, 3) == bits(whole, 3)
    for name in ("rounds.csv", "ledger.csv"):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


# --- the optimizer --------------------------------------------------------------------------------------------


def test_adamw_on_the_vector_has_the_values_of_torch_adamw_and_goes_on_from_its_state() -> None:
    values = torch.randn(20, generator=seeds.torch_generator(0, "v"))
    grads = [torch.randn(20, generator=seeds.torch_generator(0, "g", i)) for i in range(6)]
    plain = nn.Parameter(values.clone())
    wanted = torch.optim.AdamW([plain], lr=0.1, weight_decay=0.05)
    for grad in grads:
        plain.grad = grad.clone()
        wanted.step()
    ours = values.clone()
    first, second = AdamW(0.05), AdamW(0.05)
    for grad in grads[:3]:
        first.step(ours, grad, 0.1)
    second.load({name: t.clone() for name, t in first.state().items()})
    for grad in grads[3:]:
        second.step(ours, grad, 0.1)
    torch.testing.assert_close(ours, plain.detach(), rtol=1e-5, atol=1e-6)


def test_sgd_goes_on_from_its_state() -> None:
    grads = [torch.randn(5, generator=seeds.torch_generator(0, "g", i)) for i in range(4)]
    whole, parts = torch.ones(5), torch.ones(5)
    one, first, second = SGD(0.9, 0.01), SGD(0.9, 0.01), SGD(0.9, 0.01)
    for grad in grads:
        one.step(whole, grad, 0.1)
    for grad in grads[:2]:
        first.step(parts, grad, 0.1)
    second.load(first.state())
    for grad in grads[2:]:
        second.step(parts, grad, 0.1)
    assert torch.equal(whole, parts)


def test_a_client_goes_on_with_its_moments_only_if_they_are_kept() -> None:
    memory = update_of(FedAvg(optimizer="adamw", lr=0.01, optimizer_state="keep")).memory
    assert {"optimizer/exp_avg", "optimizer/exp_avg_sq", "optimizer/step"} <= set(memory)
    kept = update_of(FedAvg(optimizer="adamw", lr=0.01, optimizer_state="keep"), 2, memory)
    anew = update_of(FedAvg(optimizer="adamw", lr=0.01, optimizer_state="keep"), 2)
    assert not torch.equal(kept.weights["head.weight"], anew.weights["head.weight"])
    assert not update_of(FedAvg(optimizer="adamw", lr=0.01)).memory


def test_the_step_size_warms_up_and_falls_to_its_floor() -> None:
    method = FedAvg(lr=1.0, batch_size=8, total_rounds=4, lr_floor=0.1, warmup_steps=3)
    seen: list[float] = []

    class Spy(FedAvg):
        def lr_at(self, local: Any) -> float:
            seen.append(method.lr_at(local))
            return 1e-6

    for round in (1, 4):
        update_of(Spy(batch_size=8), round)
    assert seen[0] == pytest.approx(1 / 3)
    assert seen[3:] == sorted(seen[3:], reverse=True)
    assert 0.1 < seen[-1] < 0.2


def test_clipping_bounds_the_step() -> None:
    start = model_state(build(0))
    clipped = update_of(FedAvg(lr=1.0, momentum=0.0, weight_decay=0.0, clip=1e-3, batch_size=24), start=start)
    moved = sum(
        float((clipped.weights[name] - start[name]).square().sum())
        for name, _ in build(0).named_parameters()
    )  # fmt: skip
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-2)


# --- layers that clients keep ---------------------------------------------------------------------------------


def test_fedbn_keeps_exactly_the_batch_norm_layers(tmp_path: Path) -> None:
    update = update_of(FedBN(**SGD_ONLY))
    assert update.masks
    assert not set(update.masks) & set(update.weights)
    assert all(
        build(0).get_submodule(name.rpartition(".")[0]).__class__ is nn.BatchNorm2d for name in update.masks
    )
    plain = federate(FedAvg(**SGD_ONLY), tmp_path / "a", task=PLAIN)
    assert bits(federate(FedBN(**SGD_ONLY), tmp_path / "b", task=PLAIN)) == bits(plain), (
        "no BatchNorm, no change"
    )


def test_fedrep_never_sends_the_head_and_trains_one_part_at_a_time() -> None:
    class Half(FedRep):
        def step(self, local: Any, optimizer: Any) -> None:
            before = local.model.state()
            super().step(local, optimizer)
            after = local.model.state()
            moved = {
                name.startswith("head.") for name in before if not torch.equal(before[name], after[name])
            }
            seen.append((local.steps < local.total_steps // 2, moved))

    seen: list[tuple[bool, set[bool]]] = []
    update = update_of(Half(lr=0.05, batch_size=8, weight_decay=0.1), 2)
    assert set(update.masks) == {"head.weight", "head.bias"}
    assert not set(update.masks) & set(update.weights)
    assert all(moved == {head_phase} for head_phase, moved in seen), (
        "weight decay and momentum move nothing else"
    )
    start = model_state(build(0))
    only_head = update_of(FedRep(lr=0.05, batch_size=12, local_epochs=1), 2)  # two steps: one each
    assert only_head.metrics["steps"] == 2
    seen.clear()
    update_of(Half(lr=0.05, batch_size=8), 1)
    assert all(moved == {True, False} for _, moved in seen), "the first round is joint"
    assert any(not torch.equal(start[n], update.weights[n]) for n in update.weights)
    with pytest.raises(InputError, match="head"):
        update_of(FedRep(head=("top.",)), 2)


def test_fedrep_leaves_batch_statistics_alone_while_the_body_is_fixed() -> None:
    start = model_state(build(0))
    norms: list[State] = []

    class Watching(FedRep):
        def step(self, local: Any, optimizer: Any) -> None:
            super().step(local, optimizer)
            norms.append({n: t for n, t in local.model.state().items() if n.endswith("running_mean")})

    update_of(Watching(lr=0.05, batch_size=12), 2)
    assert all(torch.equal(t, start[name]) for name, t in norms[0].items())
    assert not all(torch.equal(t, start[name]) for name, t in norms[1].items())


# --- corrected steps ------------------------------------------------------------------------------------------


def test_scaffold_starts_as_fedavg_and_the_server_control_is_the_mean(tmp_path: Path) -> None:
    scaffold = Scaffold(**SGD_ONLY, clients=3)
    one = federate(scaffold, tmp_path / "s", 1, PLAIN)
    assert bits(one, 1) == bits(federate(FedAvg(**SGD_ONLY), tmp_path / "a", 1, PLAIN), 1)
    server, memories, model = (
        Server(model_state(build_plain(0))),
        {0: {}, 1: {}, 2: {}},
        FlatModel(build_plain(0)),
    )
    for round in (1, 2, 3):
        message = Broadcast(round, server.weights, scaffold.broadcast_statistics(server))
        updates = [
            scaffold.client_update(PLAIN, model, k, client(k), message, memories[k], 0) for k in range(3)
        ]
        memories = {update.client: update.memory for update in updates}
        server = scaffold.aggregate(server, updates)
        for name, control in server.memory.items():
            mean = sum(memories[k][name].double() for k in range(3)) / 3
            torch.testing.assert_close(control.double(), mean, rtol=1e-4, atol=1e-6)
        assert not any(name.startswith("change/") for name in memories[0])


def test_scaffold_removes_client_drift_on_quadratics() -> None:
    """Two clients pull a linear model to different places; with controls it settles where their mean loss does."""
    x = torch.ones(8, 1)
    data = [(x, torch.full((8, 1), 1.0), 1.0), (x, torch.full((8, 1), -3.0), 4.0)]  # optimum of the sum: -2.2

    class Quadratic:
        def build_model(self, seed: int) -> nn.Module:
            return nn.Linear(1, 1, bias=False)

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            inputs, targets, weight = batch
            return weight * (model(inputs) - targets).square().mean()

    class Part:
        def __init__(self, item: Any) -> None:
            self.item = item

        def __len__(self) -> int:
            return 8

        def batch(self, indices: torch.Tensor) -> Any:
            return self.item[0][indices], self.item[1][indices], self.item[2]

    results = {}
    options = SGD_ONLY | {"lr": 0.05, "local_epochs": 10}
    for method in (FedAvg(**options), Scaffold(**options, clients=2)):
        server = Server({"weight": torch.zeros(1, 1)})
        memories: dict[int, State] = {0: {}, 1: {}}
        for round in range(1, 60):
            message = Broadcast(round, server.weights, method.broadcast_statistics(server))
            updates = [
                method.client_update(
                    Quadratic(),
                    FlatModel(nn.Linear(1, 1, bias=False)),
                    k,
                    Part(data[k]),
                    message,
                    memories[k],
                    0,
                )
                for k in (0, 1)
            ]
            memories = {u.client: u.memory for u in updates}
            server = method.aggregate(server, updates)
        results[method.name] = float(server.weights["weight"])
    assert results["scaffold"] == pytest.approx(-2.2, abs=1e-3)
    assert abs(results["fedavg"] + 2.2) > 0.1


def test_feddyn_takes_twice_the_mean_step_first_and_h_is_the_mean_of_the_clients_vectors() -> None:
    method = FedDyn(**SGD_ONLY, alpha=0.1)
    server, memories = Server(model_state(build_plain(0))), {0: {}, 1: {}, 2: {}}
    model = FlatModel(build_plain(0))
    for round in (1, 2, 3):
        message = Broadcast(round, server.weights)
        updates = [
            method.client_update(PLAIN, model, k, client(k), message, memories[k], 0) for k in range(3)
        ]
        memories = {update.client: update.memory for update in updates}
        mean, before = FedAvg().aggregate(server, updates).weights, server.weights
        server = method.aggregate(server, updates)
        for name, tensor in server.weights.items():
            if round == 1:
                doubled = before[name] + 2 * (mean[name] - before[name])
                torch.testing.assert_close(tensor, doubled, rtol=1e-5, atol=1e-6)
            h = server.memory[f"h/{name}"]
            wanted = sum(24 / 72 * memories[k][f"dyn/{name}"].double() for k in range(3))
            torch.testing.assert_close(h, wanted, rtol=1e-4, atol=1e-7)


def test_feddyn_leaves_norms_to_averaging_and_warms_up(tmp_path: Path) -> None:
    covered = FedDyn().covered(model_state(build(0)))
    assert covered
    assert not any("running" in name for name in covered)
    norms = {n for n, m in build(0).named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert not {name for name in covered if name.rpartition(".")[0] in norms}
    plain = federate(FedAvg(**SGD_ONLY), tmp_path / "a")
    assert bits(federate(FedDyn(**SGD_ONLY, warmup_rounds=2), tmp_path / "b")) == bits(plain)


# --- conflicting updates --------------------------------------------------------------------------------------


def test_projection_removes_conflicts_between_two_and_never_lengthens() -> None:
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    b = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    (pa, pb), found = project([a, b], False, 0)
    assert found == 2
    assert float(pa @ b) == pytest.approx(0, abs=1e-9)
    assert float(pb @ a) == pytest.approx(0, abs=1e-9)
    assert pa.norm() <= a.norm()
    assert pb.norm() <= b.norm()
    (_, second), _ = project([a, b], True, 0)
    assert torch.allclose(second, b), "in place the second vector meets the changed first one"


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_pcgrad_without_conflicts_is_fedavg(granularity: str) -> None:
    start = model_state(build(0))
    method = PCGrad(granularity=granularity)  # type: ignore[arg-type]
    one = update_of(FedAvg(**SGD_ONLY))
    twin = Update(1, one.num_samples, one.weights)
    server = method.aggregate(Server(start), [one, twin])
    mean = FedAvg().aggregate(Server(start), [one, twin])
    assert int(server.memory["conflicts"]) == 0
    assert all(torch.equal(t, mean.weights[name]) for name, t in server.weights.items())


def test_pcgrad_changes_the_mean_where_updates_conflict() -> None:
    start = {"w": torch.zeros(2)}
    updates = [Update(0, 1, {"w": torch.tensor([-1.0, 0.0])}), Update(1, 1, {"w": torch.tensor([1.0, -1.0])})]
    server = PCGrad().aggregate(Server(start), updates)
    assert int(server.memory["conflicts"]) == 2
    torch.testing.assert_close(server.weights["w"], torch.tensor([-0.25, -0.75]))


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_pcgrad_tells_conflicts_and_cosines_of_whole_updates(granularity: str, tmp_path: Path) -> None:
    start = {"w": torch.zeros(2), "v": torch.zeros(1)}
    moved = {0: ([-1.0, 0.0], 0.0), 3: ([1.0, -1.0], 1.0), 5: ([0.0, 0.0], 0.0)}
    updates = [Update(k, 1, {"w": torch.tensor(w), "v": torch.tensor([v])}) for k, (w, v) in moved.items()]
    method = PCGrad(**SGD_ONLY, granularity=granularity)  # type: ignore[arg-type]
    found = method.aggregate(Server(start), updates).metrics
    assert found == {"conflicts": 2.0, "cosine/0/3": pytest.approx(-(3**-0.5))}, "none with an update of zero"
    log = federate(method, tmp_path).metrics().query("client == -1")
    pairs = {"cosine/0/1", "cosine/0/2", "cosine/1/2"}
    assert {(n, m) for n, m in zip(log["round"], log["metric"])} == {
        (n, m) for n in (1, 2) for m in {"conflicts", *pairs}
    }
    assert log[log["metric"].isin(pairs)]["value"].between(-1, 1).all()


# --- weights of the clients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg(), FedDyn(), PCGrad(), Scaffold(clients=3), FedCKA(tau=0.97)])
def test_clients_are_weighted_by_what_is_asked_for(method: FedAvg, tmp_path: Path) -> None:
    method = replace(method, **SGD_ONLY)
    by_size = federate(method, tmp_path / "size")
    same = federate(replace(method, client_weights=(24, 16, 8)), tmp_path / "same")
    assert bits(by_size) == bits(same)
    alike = federate(replace(method, client_weights=(1, 1, 1)), tmp_path / "alike")
    assert bits(by_size) != bits(alike)
    scale = federate(replace(method, client_weights=(8, 8, 8)), tmp_path / "scale")
    assert all(torch.allclose(t, scale.weights(2)[name], atol=1e-6) for name, t in alike.weights(2).items())
    assert set(alike.metrics().query("metric == 'samples'")["value"]) == {24, 16, 8}, (
        "the data are as they were"
    )


def test_uniform_weights_give_the_plain_mean_of_those_who_have_data() -> None:
    start = {"w": torch.zeros(1)}
    updates = [Update(k, n, {"w": torch.tensor([v])}) for k, n, v in ((0, 9, 1.0), (1, 0, 50.0), (2, 1, 3.0))]
    server = FedAvg(client_weights=(1, 1, 1)).aggregate(Server(start), updates)
    assert float(server.weights["w"]) == 2.0
    scenes = FedAvg(client_weights=(3, 1, 1)).aggregate(Server(start), updates[::-1])
    assert float(scenes.weights["w"]) == 1.5


def test_a_client_without_a_weight_is_refused_before_it_trains() -> None:
    method = FedAvg(client_weights=(1, 2))
    message = Broadcast(1, model_state(build(0)))
    with pytest.raises(InputError, match="no entry 2"):
        method.client_update(TASK, FlatModel(build(0)), 2, client(2), message, {}, 0)


# --- personal elements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedSelect, FedMC])
def test_personal_elements_grow_to_the_final_share_and_are_not_sent(kind: type[FedSelect | FedMC]) -> None:
    method = kind(**SGD_ONLY, select=0.2, final=0.3, warmup_rounds=1)
    total = sum(p.numel() for p in build(0).parameters())
    assert not update_of(method, 1).masks
    memory: State = {}
    shares, before = [], None
    for when in (2, 3, 4):
        update = update_of(method, when, memory)
        memory = update.memory
        mask = torch.cat([memory[f"elements/{name}"].reshape(-1) for name, _ in build(0).named_parameters()])
        assert before is None or bool((mask >= before).all()), "nothing is shared again"
        before = mask
        shares.append(int(mask.sum()))
        sent = sum(
            t.numel() for name, t in update.weights.items() if name in dict(build(0).named_parameters())
        )
        assert sent == total - shares[-1]
    assert shares == [round(0.2 * total), round(0.3 * total), round(0.3 * total)]


@pytest.mark.parametrize("kind", [FedSelect, FedMC])
def test_masked_rounds_can_be_stored_and_gone_on_with(tmp_path: Path, kind: type[FedSelect]) -> None:
    method = kind(**SGD_ONLY, select=0.1, final=0.2, warmup_rounds=0)
    whole = federate(method, tmp_path / "whole", 2)
    again = federate(method, tmp_path / "whole", 2)
    assert bits(whole) == bits(again)


@pytest.mark.parametrize("kind", [FedSelect, FedMC])
def test_no_selection_is_fedavg_and_all_of_it_is_training_alone(
    tmp_path: Path, kind: type[FedSelect]
) -> None:
    plain = federate(FedAvg(**SGD_ONLY), tmp_path / "a", task=PLAIN)
    none = federate(kind(**SGD_ONLY, select=0.0, warmup_rounds=0), tmp_path / "b", task=PLAIN)
    assert bits(none) == bits(plain)
    whole = kind(**SGD_ONLY, select=1.0, final=1.0, warmup_rounds=0)
    kept = update_of(whole, 1)
    changed = torch.cat([kept.memory[f"elements/{n}"].reshape(-1) for n, _ in build(0).named_parameters()])
    assert changed.float().mean() > 0.5, "all that counts; elements of dead units stay shared"


def test_ties_do_not_select_everything() -> None:
    class Flat(FedSelect):
        def scores(self, task: Any, local: Any) -> torch.Tensor:
            return torch.ones_like(local.model.values)

    update = update_of(Flat(**SGD_ONLY, select=0.1, warmup_rounds=0))
    total = sum(p.numel() for p in build(0).parameters())
    assert sum(int(mask.sum()) for mask in update.masks.values()) == round(0.1 * total)


def test_fisher_scores_change_nothing_and_their_order_ignores_the_scale_of_the_loss() -> None:
    class Scaled(FedMC):
        def loss(self, task: Any, local: Any, batch: Any) -> torch.Tensor:
            return 3 * super().loss(task, local, batch)

    model = FlatModel(build(0))
    state = model.state()
    local = Local(0, 5, 0, model, model.values.clone(), Broadcast(5, state), {}, client(0), 1)
    one = FedMC(**SGD_ONLY).scores(TASK, local)
    nine = Scaled(**SGD_ONLY).scores(TASK, local)
    assert bool((one >= 0).all())
    torch.testing.assert_close(nine, 9 * one, rtol=1e-3, atol=1e-10)
    assert all(torch.equal(t, state[name]) for name, t in model.state().items())


@pytest.mark.parametrize("how", ["localalt", "localsim"])
def test_local_training_of_masked_clients(how: str) -> None:
    method = FedSelect(**SGD_ONLY, select=0.2, final=0.2, warmup_rounds=0, local=how, shared_scale=0.0)  # type: ignore[arg-type]
    memory = update_of(method, 1).memory
    start = model_state(build(0))
    update = update_of(method, 2, memory, start)
    name = "head.weight"
    mask = memory[f"elements/{name}"]
    moved = (update.weights[name] != start[name][~mask]).any()
    assert bool(moved) == (how == "localalt"), "with scale 0 shared elements stand still under localsim"


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (FedSelect, {"select": 1.5}, "select"),
        (FedMC, {"fisher_batches": 0}, "fisher_batches"),
        (FedDyn, {"alpha": 0.0}, "alpha"),
        (Scaffold, {"clients": 0}, "clients"),
        (PCGrad, {"granularity": "tensor"}, "granularity"),
        (FedRep, {"phases": "both"}, "phases"),
        (FedAvg, {"optimizer": "adam"}, "optimizer"),
        (FedAvg, {"lr_floor": 2.0}, "lr_floor"),
        (FedAvg, {"clip": 0.0}, "clip"),
        (FedAvg, {"client_weights": (1, 0)}, "client_weights"),
        (FedAvg, {"client_weights": (1.5,)}, "client_weights"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(kind: type[FedAvg], options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        kind(**options)
