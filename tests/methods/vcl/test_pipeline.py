"""The whole one-shot protocol: messages, rounds, shared spaces, who evaluates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlib import models
from fedlib.errors import InputError
from fedlib.federation.ledger import SERVER, Ledger
from fedlib.methods.vcl.pipeline import (
    Outcome,
    aggregate,
    client_features,
    client_gaussians,
    run_tasks,
    run_vcl,
    train_clients,
)
from fedlib.methods.vcl.presets import Options

TASKS = ((0, 1), (2, 3))


def data(problem: Any) -> dict[int, Any]:
    return {k: problem.images(np.arange(40 + 8 * k) % 4, seed=k) for k in range(3)}


def outcome(problem: Any, clients: Any = None, **changes: Any) -> Outcome:
    test = problem.images(np.arange(80) % 4, seed=9)
    own = data(problem) if clients is None else clients
    return run_vcl(own, test, problem.encoder, TASKS, problem.options(**changes), seed=0, num_classes=4)


def test_paper_is_one_shot_and_sends_class_gaussians_only(problem: Any) -> None:  # properties (l), (m)
    ledger = outcome(problem).ledger
    assert ledger.uplinks() == {0: 1, 1: 1, 2: 1}
    up = [m for m in ledger.messages if m.direction == "up"]
    assert {m.kind for m in up} == {"gaussians"}
    assert {shape for m in up for shape in m.shapes.values()} == {(), (16,), (16 * 17 // 2,)}
    floats = 4 * 4 * (1 + 16 + 136)  # bytes of four classes
    assert all(floats < m.bytes < floats + 1500 for m in up)
    down = [m for m in ledger.messages if m.direction == "down"]
    assert all(set(m.shapes.values()) == {()} for m in down)


def test_one_shot_is_enforced_and_not_only_counted(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (problem.options("paper").uplinks, problem.options("code").uplinks) == (1, 2)
    monkeypatch.setattr(Options, "uplinks", 1)  # the code's protocol under the paper's rule
    with pytest.raises(InputError, match="client 0 sends 'gaussians' .* uplink number 2; allowed: 1"):
        outcome(problem, name="code", epochs=1)


def test_code_needs_two_uplinks_and_a_broadcast(problem: Any) -> None:  # property (l)
    ledger = outcome(problem, name="code").ledger
    assert ledger.uplinks() == {0: 2, 1: 2, 2: 2}
    frame = ledger.frame()
    assert frame[frame.direction == "down"].kind.unique().tolist() == ["encoder"]
    batched = [m for m in ledger.messages if m.kind == "gaussians"]
    assert {shape for m in batched for shape in m.shapes.values()} == {(), (16,), (136,)}
    assert sum(name == "tril" for name in batched[0].shapes) == 1  # tied: one triangle


@pytest.mark.parametrize(
    "changes",
    [
        {"shared_space": "local"},
        {"shared_space": "proxyset"},
        {"shared_space": "frozen"},
        {"shared_space": "frozen", "trained": "neck"},
        {"source": "moments", "covariance": "tied_within"},
        {"source": "feature_vi"},
        {"source": "niw"},
        {"eval_encoder": "ensemble"},
        {"objective": "ce", "shared_space": "local", "source": "moments"},
        {"wire": "float16", "head": "cosine"},
        {"aggregation": "matched", "footnote": "replace"},
    ],
)
def test_every_other_option_is_one_shot_too(problem: Any, changes: dict[str, Any]) -> None:
    result = outcome(problem, epochs=2, **changes)
    assert set(result.ledger.uplinks().values()) == {1}
    names = set(result.evaluations)
    if changes.get("eval_encoder") == "ensemble":
        assert names == {"ensemble"}
        assert "encoder" in result.ledger.frame().kind.tolist()
    elif changes.get("shared_space") == "frozen" and "trained" not in changes:
        assert names == {"frozen"}
    else:
        assert names == {"client 0", "client 1", "client 2"}
    assert all(np.isfinite(e.values["cil"]).all() for e in result.evaluations.values())


def test_proxies_under_the_mean_encoder_are_fitted_again(problem: Any) -> None:
    result = outcome(problem, shared_space="avg")
    assert result.ledger.uplinks() == {0: 2, 1: 2, 2: 2}
    assert not torch.equal(result.gaussians[0][0].mean, result.clients[0].proxies[0].mean)
    assert set(result.evaluations) == {"avg"}


def test_without_a_shared_space_the_mean_encoder_is_no_common_one(problem: Any) -> None:
    trained = {"epochs": 20, "lr": 1e-2}  # far enough from the common start, near which every mean is good
    alone = outcome(problem, shared_space="local", eval_encoder="avg", **trained)
    shared = outcome(problem, shared_space="avg", **trained)
    assert set(alone.evaluations) == set(shared.evaluations) == {"avg"}
    scores = [one.evaluations["avg"].overall("cil")["accuracy"] for one in (alone, shared)]
    assert scores[0] < scores[1] - 20
    assert alone.ledger.uplinks() == {0: 1, 1: 1, 2: 1}  # it is tested with a mean, so the encoders go along
    assert {m.kind for m in alone.ledger.messages} == {"gaussians", "encoder"}
    own = outcome(problem, shared_space="local", **trained)
    for k, received in own.gaussians.items():  # the server receives the same; only the test images differ
        assert all(torch.equal(q.mean, alone.gaussians[k][c].mean) for c, q in received.items())


@pytest.mark.parametrize("name", ["paper", "code"])
def test_both_presets_learn(problem: Any, name: str) -> None:
    result = outcome(problem, name=name, epochs=8, lr=3e-3)
    for evaluation in result.evaluations.values():
        assert evaluation.overall("cil")["accuracy"] > 80


@pytest.mark.parametrize("name", ["paper", "code"])
def test_order_of_clients_and_repetition_change_no_bit(problem: Any, name: str) -> None:
    runs = [
        outcome(problem, name=name, clients=own)
        for own in (data(problem), dict(reversed(data(problem).items())))
    ]
    heads = [r.run.to_tensors() for r in runs]
    assert all(torch.equal(heads[0][n], heads[1][n]) for n in heads[0])
    for key, evaluation in runs[0].evaluations.items():
        np.testing.assert_array_equal(evaluation.predicted["cil"], runs[1].evaluations[key].predicted["cil"])
    assert runs[0].ledger.frame().equals(runs[1].ledger.frame())


def test_a_client_is_trained_alike_alone_and_among_others(problem: Any) -> None:
    options = problem.options()
    together = train_clients(data(problem), problem.encoder, options, 0, 4)[2].to_tensors()
    alone = train_clients({2: data(problem)[2]}, problem.encoder, options, 0, 4)[2].to_tensors()
    assert all(torch.equal(together[name], alone[name]) for name in together)


def test_trained_clients_are_shared_by_all_settings_of_the_server(problem: Any) -> None:
    own = data(problem)
    base = problem.options()
    clients = train_clients(own, problem.encoder, base, 0, 4)
    for changes in ({"source": "moments"}, {"head": "cosine", "kd_weight": 0.0}):
        options = problem.options(**changes)
        received = client_gaussians(clients, own, problem.encoder, options, 0, Ledger())
        shared = run_tasks(aggregate(received, 4, options), TASKS, options, 0).to_tensors()
        whole = outcome(problem, **changes).run.to_tensors()
        assert all(torch.equal(shared[name], whole[name]) for name in whole)


def test_clients_of_different_architecture_share_one_space(problem: Any) -> None:
    def encoders(client: int) -> nn.Module:
        name = {0: "cnn3", 1: "cnn3_bn"}[client]
        return models.embedder(name, dim=16, in_channels=1, image_size=8, seed=0)

    own = {k: v for k, v in data(problem).items() if k < 2}
    test = problem.images(np.arange(80) % 4, seed=9)
    options = problem.options(epochs=10, lr=3e-3)
    result = run_vcl(own, test, encoders, TASKS, options, seed=0, num_classes=4)
    assert all(e.overall()["accuracy"] > 80 for e in result.evaluations.values())
    with pytest.raises(InputError, match="one architecture"):
        run_vcl(own, test, encoders, TASKS, options.changed(shared_space="avg"), seed=0, num_classes=4)


def test_client_without_samples_takes_no_part_and_all_empty_is_an_error(problem: Any) -> None:
    empty = problem.images([])
    own = data(problem) | {7: empty}
    assert sorted(train_clients(own, problem.encoder, problem.options(epochs=1), 0, 4)) == [0, 1, 2]
    with pytest.raises(InputError, match="clients \\[7\\] all have 0"):
        train_clients({7: empty}, problem.encoder, problem.options(), 0, 4)


@pytest.mark.parametrize("name", ["paper", "code"])
def test_one_class_one_sample_and_a_class_on_no_client_go_through(problem: Any, name: str) -> None:
    own = {
        0: problem.images(np.arange(40) % 2),
        1: problem.images(np.full(20, 2)),  # one class
        2: problem.images([0]),  # one sample
    }
    result = outcome(problem, name=name, clients=own)  # class 3 is on no client
    assert result.model.missing == (3,)
    assert [sorted(result.gaussians[k]) for k in range(3)] == [[0, 1], [2], [0]]
    for evaluation in result.evaluations.values():
        assert np.isfinite(evaluation.values["cil"]).all()
        assert 3 not in evaluation.predicted["cil"] or name == "code"
    assert all(torch.isfinite(t).all() for t in result.run.to_tensors().values())


def test_a_label_that_is_no_class_names_the_client(problem: Any) -> None:
    own = data(problem) | {1: problem.images([0, 5])}
    with pytest.raises(InputError, match="client 1 has labels 0 to 5; allowed: 0 to 3"):
        train_clients(own, problem.encoder, problem.options(epochs=1), 0, 4)


def test_more_tasks_than_classes_are_refused_with_the_task_that_is_empty(problem: Any) -> None:
    model = problem.model([9, 9])
    with pytest.raises(
        InputError, match="task 3 of 3 has no class; allowed: at most as many tasks as classes"
    ):
        run_tasks(model, ((0,), (1,), ()), problem.options(), 0)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, 4 * (16 + 136 + 1)),  # C_k (d + d(d + 1)/2 + 1)
        ({"source": "moments", "covariance": "tied_within"}, 4 * (16 + 1) + 136),  # C_k (d + 1) + d(d + 1)/2
        ({"source": "feature_vi"}, 4 * (2 * 16 + 1)),  # C_k (2d + 1)
    ],
)
def test_measured_bytes_are_the_counted_numbers_and_names(
    problem: Any, changes: dict[str, Any], numbers: int
) -> None:
    options = problem.options(shared_space="local", epochs=1, **changes)
    own = {0: data(problem)[0]}
    clients, ledger = train_clients(own, problem.encoder, options, 0, 4), Ledger()
    client_gaussians(clients, own, problem.encoder, options, 0, ledger)
    assert ledger.uplinks() == {0: 1}
    assert 4 * numbers < ledger.total_bytes("up") < 4 * numbers + 1500
    assert ledger.total_bytes("down") == 0


def test_the_mean_encoder_costs_an_encoder_each_way(problem: Any) -> None:
    own = {0: data(problem)[0]}
    options, ledger = problem.options("code", epochs=1), Ledger()
    clients = train_clients(own, problem.encoder, options, 0, 4)
    client_gaussians(clients, own, problem.encoder, options, 0, ledger)
    numbers = sum(tensor.numel() for tensor in clients[0].encoder.values())
    assert 4 * numbers <= ledger.total_bytes("down") < 4 * numbers + 4000
    gaussians = 4 * (16 + 1) + 136
    assert 4 * (numbers + gaussians) <= ledger.total_bytes("up") < 4 * (numbers + gaussians) + 5500


def test_classes_with_few_samples_are_kept_back(problem: Any) -> None:
    own = {0: problem.images([0] * 20 + [1] * 20 + [2]), 1: problem.images([2] * 20 + [3] * 20)}
    for least, held in ((1, [0, 1, 2]), (2, [0, 1])):
        result = outcome(problem, clients=own, min_count=least)
        assert sorted(result.gaussians[0]) == held


def test_public_images_are_needed_for_their_shared_space(problem: Any) -> None:
    options = problem.options(shared_space="pubdata", epochs=1)
    with pytest.raises(InputError, match="with 0 public images"):
        train_clients(data(problem), problem.encoder, options, 0, 4)
    public = problem.images(np.arange(30) % 4 + 6)
    clients = train_clients(data(problem), problem.encoder, options, 0, 4, public)
    assert len(clients) == 3


def test_features_for_the_diagnostics_are_those_of_the_shared_space(problem: Any) -> None:
    own, options = data(problem), problem.options("code")
    clients = train_clients(own, problem.encoder, options, 0, 4)
    z = client_features(clients, own, problem.encoder, options)
    assert {k: tuple(v.shape) for k, v in z.items()} == {0: (40, 16), 1: (48, 16), 2: (56, 16)}
    torch.testing.assert_close(z[0].norm(dim=1), torch.ones(40))
    assert SERVER not in z
