"""Layers, activations, scores and selection of FedCKA on small networks."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.methods.fedcka import representations
from fedlib.methods.fedcka.activations import called_modules, recording, to_rows
from fedlib.methods.fedcka.layers import blocks, partition
from fedlib.methods.fedcka.scores import Scoring, layer_scores
from fedlib.methods.fedcka.selection import by_percentage, by_threshold


class Net(nn.Module):
    """Two convolutions with BatchNorm, attention, an embedding table of its own, a tied pair."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(4))
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.conv(x)).relu_().flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens)[0]
        return self.head(self.second(self.first(tokens)).mean(1) * self.scale)


def net(seed: int = 0) -> Net:
    with seeds.torch_global(seed, "net"):
        return Net()


IMAGES = torch.randn(6, 1, 6, 6, generator=seeds.torch_generator(0, "images"))


def run(model: nn.Module, one: Any) -> Any:
    return model(one)


def layers_of(model: nn.Module) -> Any:
    return partition(model, called_modules(model, lambda m: m(IMAGES[:1])))


def test_layers_hold_every_parameter_exactly_once() -> None:
    model = net()
    layers = layers_of(model)
    assert sum(layer.parameters for layer in layers) == sum(p.numel() for p in model.parameters())
    tensors = [name for layer in layers for name in layer.tensors]
    assert sorted(tensors) == sorted(model.state_dict())
    names = [layer.name for layer in layers]
    assert names == ["", "conv", "norm", "attention", "first", "unused", "head"], (
        "in the order of the network"
    )
    by_name = {layer.name: layer for layer in layers}
    assert by_name["first"].modules == ("first", "second"), "a tied pair is one layer"
    assert "attention.out_proj.weight" in by_name["attention"].tensors, "never called on its own"
    assert "norm.num_batches_tracked" in by_name["norm"].tensors


def test_blocks_must_hold_all_and_not_overlap() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 2))
    assert [layer.parameters for layer in blocks(model, ["0", "1"])] == [9, 8]
    with pytest.raises(InputError, match="in no block"):
        blocks(model, ["0"])
    with pytest.raises(InputError, match="overlap"):
        blocks(model, ["0", "0.0", "1"])
    with pytest.raises(InputError, match="no module"):
        blocks(model, ["2"])
    with pytest.raises(InputError, match="overlap"):
        blocks(model, ["0", "1", "1"])
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(InputError, match="overlap in 1.weight"):
        blocks(tied, ["0", "1"])
    (whole,) = blocks(tied, [""])
    assert (whole.parameters, set(whole.tensors)) == (8, set(tied.state_dict()))


@pytest.mark.parametrize("rows", ["positions", "pooled", "inputs"])
def test_equal_models_score_one_everywhere(rows: str) -> None:
    model = net()
    found = layer_scores(
        model, net(), layers_of(model), list(IMAGES.split(1)), run,
        Scoring(rows=rows, hsic="unbiased" if rows == "inputs" else "biased"), 0,
    )  # fmt: skip
    assert {"conv", "norm", "attention", "first"} <= set(found)
    assert not {"", "unused"} & set(found), "no activation, no score"
    assert all(score == pytest.approx(1, abs=1e-9) for score in found.values())


def test_scores_are_the_means_over_inputs_of_cka_by_its_definition() -> None:
    reference, local = net(), net(1)
    layers = layers_of(reference)
    found = layer_scores(reference, local, layers, list(IMAGES.split(1)), run, Scoring(), 0)
    wanted: dict[str, list[float]] = {}
    for one in IMAGES.split(1):  # nothing of one input may reach the next
        for layer in layers:
            scores = []
            for name in layer.modules:
                with (
                    recording(reference, {name}, "positions") as x,
                    recording(local, {name}, "positions") as y,
                ):
                    run(reference, one)
                    run(local, one)
                if len(torch.cat(x.get(name, [torch.empty(0)]))) > 1:
                    a, b = (torch.cat(side[name]).double() for side in (x, y))
                    a, b = a - a.mean(0), b - b.mean(0)
                    k, other = a @ a.T, b @ b.T
                    scores.append(float((k * other).sum() / (k.norm() * other.norm())))
            if scores:
                wanted.setdefault(layer.name, []).append(min(scores))
    assert set(found) == {"conv", "norm", "attention", "first"}
    assert found == pytest.approx({name: sum(s) / len(s) for name, s in wanted.items()}, abs=1e-6)


def same_scores(one: dict[str, float], other: dict[str, float]) -> bool:
    return one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("rows", ["positions", "pooled", "inputs"])
@pytest.mark.parametrize("size", [2**28, 1])  # all inputs together, and each alone for want of memory
def test_inputs_that_pass_together_keep_their_scores(
    rows: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(representations, "AT_ONCE", size)
    scoring = Scoring(rows=rows, hsic="unbiased" if rows == "inputs" else "biased", max_rows=30)
    sizes: list[int] = []

    def noted(model: nn.Module, one: Any) -> Any:
        sizes.append(len(one))
        return model(one)

    alone, together = (
        layer_scores(net(), net(1), layers_of(net()), list(IMAGES.split(1)), noted, scoring, 0, join=join)
        for join in (None, torch.cat)
    )
    assert same_scores(alone, together)
    assert max(sizes) == (5 if size > 1 else 1)


class Places(nn.Module):
    """Adds an encoding of places, the same for all samples, and mixes tokens that come first (T, B, d)."""

    def __init__(self, tokens_first: bool) -> None:
        super().__init__()
        self.where, self.token = nn.Linear(2, 4), nn.Linear(1, 4)
        self.mix = nn.Linear(4, 4)
        self.tokens_first = tokens_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.where(torch.arange(72.0).reshape(36, 2))
        tokens = self.token(x.flatten(2).mT) + places
        return self.mix(tokens.transpose(0, 1) if self.tokens_first else tokens)


@pytest.mark.parametrize("tokens_first", [False, True])
def test_outputs_without_samples_along_the_first_axis_are_scored_as_those_of_each_input(
    tokens_first: bool,
) -> None:
    models = []
    for seed in (0, 1):
        with seeds.torch_global(seed, "places"):
            models.append(Places(tokens_first))
    alone, together = (
        layer_scores(*models, partition(models[0]), list(IMAGES.split(1)), run, Scoring(), 0, join=join)
        for join in (None, torch.cat)
    )
    assert set(alone) == {"where", "token", "mix"}
    assert same_scores(alone, together)


def test_the_views_of_an_input_are_one_row_where_inputs_are_the_rows() -> None:
    with seeds.torch_global(0, "views"):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    inputs = list(IMAGES[:, None].expand(-1, 3, -1, -1, -1))  # six inputs of three views each
    other = copy.deepcopy(model)
    found = list(representations.representations(model, other, {"0"}, inputs, run, torch.cat))
    assert [x.shape for pairs in found for x, _ in pairs.values()] == [(1, 48, 2), (5, 48, 2)]
    scoring = Scoring(rows="inputs", hsic="unbiased")
    assert layer_scores(model, other, partition(model), inputs[:3], run, scoring, 0) == {}, (
        "three inputs are three rows, too few for the unbiased estimate"
    )


def test_a_new_layer_scores_low_and_layers_before_it_do_not_change() -> None:
    reference, local = net(), net()
    with seeds.torch_global(5, "again"):
        local.attention._reset_parameters()
    found = layer_scores(reference, local, layers_of(reference), list(IMAGES.split(1)), run, Scoring(), 0)
    assert [found["conv"], found["norm"]] == pytest.approx([1, 1])
    assert found["attention"] < 0.9


def test_scoring_changes_nothing_in_the_models() -> None:
    reference, local = net(1), net(2)
    local.train()
    reference.norm.eval()
    before = {name: t.clone() for name, t in (reference.state_dict() | local.state_dict()).items()}
    flags = [m.training for m in (*reference.modules(), *local.modules())]
    stream = torch.random.get_rng_state()
    layer_scores(reference, local, layers_of(local), list(IMAGES.split(1)), run, Scoring(), 0)
    assert torch.equal(stream, torch.random.get_rng_state())
    assert flags == [m.training for m in (*reference.modules(), *local.modules())]
    for name, t in (reference.state_dict() | local.state_dict()).items():
        assert torch.equal(t, before[name])
    assert not any(m._forward_hooks for m in (*reference.modules(), *local.modules()))


def test_permuted_hidden_units_are_the_same_representation_far_away_in_parameters() -> None:
    with seeds.torch_global(0, "mlp"):
        first = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        second = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
    order = torch.randperm(16, generator=seeds.torch_generator(0, "units"))
    with torch.no_grad():
        second[0].weight.copy_(first[0].weight[order])
        second[0].bias.copy_(first[0].bias[order])
        second[2].weight.copy_(first[2].weight[:, order])
        second[2].bias.copy_(first[2].bias)
    inputs = [torch.randn(20, 5, generator=seeds.torch_generator(0, "in"))]
    found = layer_scores(first, second, partition(first), inputs, run, Scoring(), 0)
    assert found == {"0": pytest.approx(1), "2": pytest.approx(1)}
    assert float((first[0].weight - second[0].weight).detach().abs().max()) > 0.3


def test_the_channel_axis_follows_the_kind_of_module() -> None:
    tokens = torch.zeros(2, 6, 5, 7)
    assert to_rows(nn.Linear(7, 7), tokens, "positions").shape == (60, 7)
    assert to_rows(nn.Conv2d(6, 6, 1), tokens, "positions").shape == (70, 6)
    assert to_rows(nn.Conv2d(6, 6, 1), tokens, "inputs").shape == (2, 210)
    assert to_rows(nn.BatchNorm1d(6), torch.zeros(2, 6), "positions").shape == (2, 6)


def test_activations_that_are_not_finite_name_the_layer() -> None:
    broken = net()
    with torch.no_grad():
        broken.attention.in_proj_bias.fill_(torch.nan)
    inputs = [IMAGES[:1]]
    with pytest.raises(FloatingPointError, match="attention"):
        layer_scores(net(), broken, layers_of(broken), inputs, run, Scoring(), 0)
    found = layer_scores(net(), broken, layers_of(broken), inputs, run, Scoring(strict=False), 0)
    assert "attention" not in found
    assert found["conv"] == pytest.approx(1)


def test_equal_representations_score_exactly_one_and_are_shared_even_with_tau_one() -> None:
    reference, local = net(), net()
    with torch.no_grad():
        local.attention.in_proj_weight.mul_(-1.3).add_(0.2)
    layers = layers_of(reference)
    scores = layer_scores(reference, local, layers, list(IMAGES.split(1)), run, Scoring(), 0, join=torch.cat)
    assert scores["conv"] == scores["norm"] == 1, "what stands before the change has the same bits"
    chosen = by_threshold(layers, scores, 1.0)
    assert "attention" in chosen
    assert not {"conv", "norm"} & chosen


def test_a_frozen_network_shares_every_layer() -> None:
    with seeds.torch_global(0, "frozen"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    layers = partition(model)
    found = layer_scores(
        model, copy.deepcopy(model), layers, list(IMAGES.split(1)), run, Scoring(), 0, join=torch.cat
    )
    assert by_threshold(layers, found, 1.0) == set()


def test_the_biased_estimate_with_inputs_as_rows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Scoring(rows="inputs", hsic="unbiased")
        assert not caplog.records
        Scoring(rows="inputs")
    assert "near 1 for unrelated features" in caplog.text


# --- selection ------------------------------------------------------------------------------------------------

LAYERS = partition(nn.Sequential(nn.Linear(9, 1), nn.Linear(1, 10), nn.Linear(4, 6), nn.Linear(2, 10)))
SCORES = {"0": 0.9, "1": 0.2, "2": 0.5, "3": 0.2}  # 10, 20, 30 and 30 parameters


def test_the_least_alike_layers_become_personal_first() -> None:
    assert [layer.parameters for layer in LAYERS] == [10, 20, 30, 30]
    assert by_percentage(LAYERS, SCORES, set(), 0.1, schedule="per_round") == {"1"}, "ties go by layer order"
    assert by_percentage(LAYERS, SCORES, set(), 0.5, schedule="per_round") == {"1", "3"}
    assert by_percentage(LAYERS, SCORES, set(), 0.0, schedule="per_round") == set()
    assert by_percentage(LAYERS, SCORES, set(), 1.0, schedule="per_round") == {"0", "1", "2", "3"}


@pytest.mark.parametrize("rho", [0.05, 0.22, 0.3, 0.6, 0.9])
def test_the_realised_share_reaches_the_target_by_less_than_one_layer(rho: float) -> None:
    chosen = by_percentage(LAYERS, SCORES, set(), rho, schedule="per_round")
    share = sum(layer.parameters for layer in LAYERS if layer.name in chosen) / 90
    assert rho <= share < rho + 30 / 90


def test_percentages_accumulate_and_stop() -> None:
    chosen: set[str] = set()
    for _ in range(5):
        grown = by_percentage(LAYERS, SCORES, chosen, 0.5, schedule="incremental", step=0.1)
        assert grown >= chosen
        chosen = grown
    assert chosen == {"1", "3"}, "50 of 90 parameters are reached and nothing follows"
    once = by_percentage(LAYERS, SCORES, {"2"}, 0.5, schedule="once", first=False)
    assert once == {"2"}


def test_thresholds_are_strict_monotone_and_forget() -> None:
    assert by_threshold(LAYERS, SCORES, 0.2) == set()
    assert by_threshold(LAYERS, SCORES, 0.5) == {"1", "3"} <= by_threshold(LAYERS, SCORES, 0.95)
    assert by_threshold(LAYERS, {"0": 0.1}, 1.0) == {"0"}, "layers without a score are shared"
    with pytest.raises(InputError, match="tau"):
        by_threshold(LAYERS, SCORES, 1.5)


@pytest.mark.parametrize("step", [0.05, 0.2, 0.4])
def test_each_increment_reaches_its_target_by_less_than_one_layer(step: float) -> None:
    total, largest = 90, 30
    chosen: set[str] = set()
    for _ in range(8):
        held = sum(layer.parameters for layer in LAYERS if layer.name in chosen)
        grown = by_percentage(LAYERS, SCORES, chosen, 0.7, schedule="incremental", step=step)
        now = sum(layer.parameters for layer in LAYERS if layer.name in grown)
        target = min(step * total, 0.7 * total - held)
        assert (now == held) if target <= 1e-9 else (target <= now - held < target + largest)
        chosen = grown
    assert sum(layer.parameters for layer in LAYERS if layer.name in chosen) / total >= 0.7
