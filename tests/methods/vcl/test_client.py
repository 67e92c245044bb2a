"""Local training: what is trained, what is not, and what it depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.model_state import model_state
from fedlib.methods.federated.fedavg import batch_norm_layers
from fedlib.methods.vcl.client import Public, TrainedClient, train_client_ce, train_client_vi
from fedlib.methods.vcl.inputs import FeatureData, balanced_rows, class_counts, unit_features
from fedlib.methods.vcl.presets import preset
from fedlib.methods.vcl.shared_space import anchors, average_encoders

LABELS = np.arange(90) % 3


def norm_tensors(model: nn.Module) -> list[Tensor]:
    return [t.clone() for layer in batch_norm_layers(model) for t in layer.state_dict().values()]


def train(
    problem: Any, *, labels: np.ndarray = LABELS, client: int = 0, seed: int = 0, **changes: Any
) -> Any:
    options = problem.options(**changes)
    encoder = problem.encoder()
    function = train_client_ce if options.objective == "ce" else train_client_vi
    extra = {}
    if options.shared_space in ("anchor", "proxyset"):
        extra["anchors"] = anchors(4, 16, seed)
    return function(
        problem.images(labels), encoder, options, client=client, seed=seed, num_classes=4, **extra
    )


def same(a: TrainedClient, b: TrainedClient) -> bool:
    x, y = a.to_tensors(), b.to_tensors()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def test_loss_falls_and_only_held_classes_have_proxies(problem: Any) -> None:
    client = train(problem, epochs=6)
    assert client.losses[-1] < client.losses[0] - 0.1
    assert sorted(client.proxies) == [0, 1, 2]
    assert client.counts.tolist() == [30, 30, 30, 0]
    assert [q.count for q in client.proxies.values()] == [30, 30, 30]


@pytest.mark.parametrize("objective", ["vi", "ce"])
def test_frozen_batch_norm_keeps_every_bit(problem: Any, objective: str) -> None:
    space = "local"
    source = "proxy" if objective == "vi" else "moments"
    options = problem.options(objective=objective, shared_space=space, source=source)
    encoder = problem.encoder()
    before, weights = norm_tensors(encoder), model_state(encoder)
    function = train_client_vi if objective == "vi" else train_client_ce
    function(problem.images(LABELS), encoder, options, client=0, seed=0, num_classes=4)
    after = norm_tensors(encoder)
    assert len(before) >= 5
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert not torch.equal(weights["neck.weight"], encoder.state_dict()["neck.weight"])


def test_code_freezes_the_affine_part_only(problem: Any) -> None:
    encoder = problem.encoder()
    layer = batch_norm_layers(encoder)[0]
    weight, mean = layer.weight.clone(), layer.running_mean.clone()
    train_client_ce(problem.images(LABELS), encoder, problem.options("code"), client=0, seed=0, num_classes=4)
    assert torch.equal(layer.weight, weight)
    assert not torch.equal(layer.running_mean, mean)


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_training_depends_on_seed_and_client_alone(problem: Any, preset: str) -> None:
    kwargs = {"name": preset}
    first = train(problem, **kwargs)
    torch.rand(3)
    assert same(first, train(problem, **kwargs))
    assert not same(first, train(problem, seed=1, **kwargs))
    other = train(problem, client=1, **kwargs)
    assert not torch.equal(first.encoder["neck.weight"], other.encoder["neck.weight"])


def test_clients_draw_their_proxies_from_streams_of_their_own() -> None:
    z = functional.normalize(torch.randn(32, 8, generator=seeds.torch_generator(0)), dim=1)
    data = FeatureData(z, np.arange(32) % 2)
    # one batch, so that the order of the samples matters to rounding only
    options = preset("paper", shared_space="anchor", trained="none", epochs=1, batch_size=32)
    found = [
        train_client_vi(
            data, nn.Identity(), options, client=k, seed=0, num_classes=2, anchors=anchors(2, 8, 0)
        )
        for k in (0, 1)
    ]
    assert abs(found[0].losses[0] - found[1].losses[0]) > 1e-5  # more than rounding in another order


@pytest.mark.parametrize("trained", ["neck", "none"])
def test_what_is_not_trained_keeps_every_bit(problem: Any, trained: str) -> None:
    before = model_state(problem.encoder())
    client = train(problem, shared_space="frozen", trained=trained)
    changed = {name for name, t in before.items() if not torch.equal(t, client.encoder[name])}
    assert changed == ({"neck.weight", "norm.weight", "norm.bias"} if trained == "neck" else set())
    assert len(client.losses) == 3


def test_cached_features_of_a_frozen_encoder_change_nothing(problem: Any) -> None:
    options = problem.options(shared_space="frozen")
    direct = train(problem, shared_space="frozen")
    features = FeatureData(unit_features(problem.encoder(), problem.images(LABELS)), LABELS)
    cached = train_client_vi(features, nn.Identity(), options, client=0, seed=0, num_classes=4)
    for label, q in direct.proxies.items():
        torch.testing.assert_close(q.mean, cached.proxies[label].mean)


def test_frozen_encoder_with_cross_entropy_is_left_alone(problem: Any) -> None:
    client = train(problem, objective="ce", source="moments", shared_space="frozen")
    assert client.losses == ()
    assert client.proxies == {}


def test_anchors_are_a_simplex_and_the_seed_fixes_them() -> None:
    a = anchors(5, 16, 0).double()
    gram = a @ a.T
    expected = torch.full((5, 5), -1 / 4, dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected, atol=1e-6, rtol=0)
    assert torch.equal(anchors(5, 16, 0), anchors(5, 16, 0))
    assert not torch.equal(anchors(5, 16, 0), anchors(5, 16, 1))
    torch.testing.assert_close(anchors(1, 16, 0).norm(), torch.tensor(1.0))
    with pytest.raises(InputError, match="anchors"):
        anchors(17, 16, 0)


def test_strong_anchors_give_all_clients_the_same_means(problem: Any) -> None:
    clients = [train(problem, client=k, anchor_weight=1e4, proxy_lr_factor=10.0) for k in range(2)]
    for label in range(3):
        a, b = (c.proxies[label].mean for c in clients)
        assert functional.cosine_similarity(a, b, dim=0) > 0.99


def test_proxyset_learns_the_covariance_only(problem: Any) -> None:
    client = train(problem, shared_space="proxyset", proxy_lr_factor=30.0)
    published = anchors(4, 16, 0)
    for label, q in client.proxies.items():
        assert torch.equal(q.mean, published[label])
        assert not torch.equal(q.tril, 0.1 / 4 * torch.eye(16))


def test_public_images_hold_the_features_to_the_common_encoder(problem: Any) -> None:
    public = problem.images(np.arange(40) % 5 + 5, seed=3)
    start = problem.encoder()
    reference = unit_features(start, public)
    cosines = []
    for weight in (0.0, 30.0):
        encoder = problem.encoder()
        options = problem.options(shared_space="pubdata", anchor_weight=weight, epochs=6)
        train_client_vi(
            problem.images(LABELS),
            encoder,
            options,
            client=0,
            seed=0,
            num_classes=4,
            public=Public(public, reference),
        )
        cosines.append(float((unit_features(encoder, public) * reference).sum(1).mean()))
    assert cosines[1] > max(cosines[0], 0.9)


def test_average_of_equal_encoders_is_the_encoder(problem: Any) -> None:  # property (l)
    state = model_state(problem.encoder())
    for clients in (1, 3):
        average = average_encoders(dict.fromkeys(range(clients), state))
        assert all(torch.equal(average[name], state[name]) for name in state)


def test_average_does_not_depend_on_the_order_of_clients(problem: Any) -> None:
    states = {k: train(problem, client=k, epochs=1).encoder for k in range(3)}
    backwards = dict(reversed(states.items()))
    a, b = average_encoders(states), average_encoders(backwards)
    assert all(torch.equal(a[name], b[name]) for name in a)
    mean = (states[0]["neck.weight"] + states[1]["neck.weight"] + states[2]["neck.weight"]) / 3
    torch.testing.assert_close(a["neck.weight"], mean)


def test_batch_norm_statistics_are_averaged_by_name(problem: Any) -> None:
    """Weights alone would leave the mean encoder with one client's statistics; positions may differ."""
    states = [model_state(problem.encoder()) for _ in range(2)]
    (mean,) = [name for name in states[0] if name.endswith("running_mean")][:1]
    (count,) = [name for name in states[0] if name.endswith("num_batches_tracked")][:1]
    for state, value in zip(states, (1.0, 4.0)):
        state[mean] = torch.full_like(state[mean], value)
        state[count] = torch.tensor(int(10 * value))
    average = average_encoders({0: states[0], 1: dict(reversed(states[1].items()))})
    assert average[mean].eq(2.5).all()
    assert int(average[count]) == 40
    problem.encoder().load_state_dict(average)


def test_a_trained_client_keeps_no_tie_to_the_live_encoder(problem: Any) -> None:
    encoder, options = problem.encoder(), problem.options(epochs=1, shared_space="local")
    client = train_client_vi(problem.images(LABELS), encoder, options, client=0, seed=0, num_classes=4)
    before = {name: tensor.clone() for name, tensor in client.encoder.items()}
    with torch.no_grad():
        for tensor in encoder.state_dict().values():
            tensor.fill_(7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in client.encoder.items())


def test_proxies_start_small_and_the_prior_has_the_length_of_a_feature(problem: Any) -> None:
    """By default L = 0.1/sqrt(d) I, m in U(-1/sqrt(d), 1/sqrt(d)) and sigma0 = 1/sqrt(d); here d = 16."""
    start = train(problem, epochs=1, lr=1e-12, shared_space="frozen")
    for q in start.proxies.values():
        torch.testing.assert_close(q.tril, 0.025 * torch.eye(16), atol=1e-6, rtol=0)
        assert 0.1 < float(q.mean.abs().max()) <= 0.25
    default, named, other = (
        train(problem, epochs=1, shared_space="frozen", prior_scale=scale) for scale in (None, 0.25, 1.0)
    )
    assert same(default, named)
    assert not same(default, other)


def test_weight_decay_is_on_the_encoder_and_never_on_the_proxies(problem: Any) -> None:
    clients = [
        train(problem, shared_space="frozen", trained="neck", weight_decay=decay, eval_encoder="auto")
        for decay in (0.0, 30.0)
    ]
    norms = [float(client.encoder["neck.weight"].norm()) for client in clients]
    assert norms[1] < 0.8 * norms[0]
    only_proxies = [train(problem, shared_space="frozen", weight_decay=decay) for decay in (0.0, 30.0)]
    for label, q in only_proxies[0].proxies.items():
        assert torch.equal(q.mean, only_proxies[1].proxies[label].mean)
        assert torch.equal(q.tril, only_proxies[1].proxies[label].tril)


def test_gradients_are_clipped_only_if_asked(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    clip = nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        nn.utils, "clip_grad_norm_", lambda params, limit: limits.append(limit) or clip(params, limit)
    )
    train(problem, epochs=1)
    assert not limits
    train(problem, epochs=1, clip=5.0)
    assert limits == [5.0] * 3  # one of each batch


def test_public_images_need_the_whole_encoder_trained(problem: Any) -> None:
    public = Public(problem.images(LABELS), torch.ones(90, 16))
    with pytest.raises(InputError, match="trained is 'neck' with shared_space 'pubdata'; allowed: all"):
        train_client_vi(
            problem.images(LABELS),
            problem.encoder(),
            problem.options(shared_space="pubdata", trained="neck"),
            client=0,
            seed=0,
            num_classes=4,
            public=public,
        )


def test_encoders_of_different_architecture_cannot_be_averaged(problem: Any) -> None:
    state = model_state(problem.encoder())
    with pytest.raises(InputError, match="one architecture; client 1"):
        average_encoders({0: state, 1: {"other": torch.zeros(1)}})


def test_client_with_one_class_or_one_sample_is_trained(problem: Any) -> None:
    one_class = train(problem, labels=np.full(20, 2))
    assert sorted(one_class.proxies) == [2]
    assert np.isfinite(one_class.losses).all()
    for name in ("paper", "code"):
        one_sample = train(problem, name=name, labels=np.array([1]))
        assert one_sample.counts.tolist() == [0, 1, 0, 0]
    with pytest.raises(InputError, match="client 0 holds 1 class"):
        train(problem, labels=np.full(20, 2), exclude_positive=True)


@pytest.mark.parametrize(
    ("labels", "says"),
    [([], "client 5 has 0 samples"), ([0, 4], "client 5 has labels 0 to 4; allowed: 0 to 3")],
)
def test_no_samples_and_unknown_labels_are_refused(problem: Any, labels: list[int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        class_counts(problem.images(labels), 4, client=5)


def test_diverged_training_names_client_and_epoch(problem: Any) -> None:
    z = torch.full((4, 16), torch.nan)
    data = FeatureData(z, np.arange(4) % 2)
    with pytest.raises(FloatingPointError, match="client 3, epoch 1"):
        train_client_vi(
            data, nn.Identity(), problem.options(shared_space="frozen"), client=3, seed=0, num_classes=2
        )


def test_balanced_rows_draw_all_classes_equally_often() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    rows = balanced_rows(labels, seeds.torch_generator(0))
    counts = np.bincount(labels[rows.numpy()], minlength=3)
    assert len(rows) == 1000
    assert (abs(counts - 1000 / 3) < 4 * (1000 * 2 / 9) ** 0.5).all()


def test_trained_client_is_stored_and_read_without_loss(problem: Any) -> None:
    client = train(problem, epochs=1)
    back = TrainedClient.from_tensors(load(save(client.to_tensors())))
    assert same(client, back)
    assert back.losses == client.losses
