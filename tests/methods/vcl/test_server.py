"""Mixtures, prior, synthesis; options and presets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian
from fedlib.methods.vcl.presets import PARTS, Options, preset
from fedlib.methods.vcl.server import GlobalModel, aggregate, class_prior, class_sizes, synthesise


def sent(clients: int = 3, classes: int = 4, d: int = 4) -> dict[int, dict[int, ClassGaussian]]:
    g = seeds.torch_generator(0, "sent")
    return {
        k: {
            c: ClassGaussian(torch.randn(d, generator=g), 0.3 * torch.eye(d), 10 * (k + 1) + c)
            for c in range(classes)
            if (k + c) % 3  # client k does not hold every class
        }
        for k in range(clients)
    }


def test_g4_prior_is_clipped_and_then_renormalised() -> None:
    p = class_prior(torch.tensor([670, 110, 20, 200]), 0.5, 0.05, 0.25)
    assert p.tolist() == pytest.approx([0.3164557, 0.2278481, 0.1708861, 0.2848101], abs=1e-7)


def test_prior_of_two_classes_is_always_even_with_a_cap_of_a_quarter() -> None:
    assert class_prior(torch.tensor([990, 10]), 0.5, 0.05, 0.25).tolist() == [0.5, 0.5]


def test_prior_at_its_ends() -> None:  # property (f)
    counts = torch.tensor([7, 2, 1])
    torch.testing.assert_close(class_prior(counts, 1.0, 0.0, 1.0), counts / 10.0, check_dtype=False)
    assert class_prior(counts, 0.0, 0.0, 1.0).tolist() == pytest.approx([1 / 3] * 3)
    assert class_prior(counts, 0.3, 0.1, 0.4).sum() == pytest.approx(1)


def test_exact_clip_respects_its_bounds() -> None:
    counts = torch.tensor([670, 110, 20, 200])
    p = class_prior(counts, 0.5, 0.05, 0.3, exact=True)
    assert p.sum() == pytest.approx(1)
    assert p.max() == pytest.approx(0.3)
    free = class_prior(counts, 0.5, 0.0, 1.0, exact=True)
    torch.testing.assert_close(free, class_prior(counts, 0.5, 0.0, 1.0))
    inside = (p > 0.05) & (p < 0.3)
    shift = (p - free)[inside]
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))  # the nearest point moves all by the same
    with pytest.raises(InputError, match="exact_clip"):
        class_prior(torch.tensor([1, 1]), 0.5, 0.05, 0.25, exact=True)


@pytest.mark.parametrize("counts", [[], [0, 0], [-1, 2]])
def test_prior_of_no_samples_is_refused(counts: list[int]) -> None:
    with pytest.raises(InputError, match="class counts"):
        class_prior(torch.tensor(counts), 0.5, 0.05, 0.25)


def test_order_of_clients_changes_nothing(problem: Any) -> None:  # property (k)
    own = sent()
    a = aggregate(own, 4, problem.options())
    b = aggregate(dict(reversed(own.items())), 4, problem.options())
    x, y = a.to_tensors(), b.to_tensors()
    assert x.keys() == y.keys()
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert a.mixtures[1].weights.tolist() == pytest.approx([11 / 32, 21 / 32])


def test_shares_and_prior_follow_the_counts_under_any_client_ids(problem: Any) -> None:
    own = sent()
    renamed = {10 - k: q for k, q in own.items()}
    a, b = aggregate(own, 4, problem.options()), aggregate(renamed, 4, problem.options())
    torch.testing.assert_close(a.prior, b.prior)
    for p, q in zip(a.mixtures, b.mixtures):
        assert sorted(p.weights.tolist()) == pytest.approx(sorted(q.weights.tolist()))
        torch.testing.assert_close(p.mean(), q.mean())


def test_single_gaussian_aggregations(problem: Any) -> None:
    own = sent()
    mixture, one, mean = (
        aggregate(own, 4, problem.options(aggregation=a)).mixtures[1]
        for a in ("mixture", "matched", "averaged")
    )
    assert (len(mixture.components), len(one.components), len(mean.components)) == (2, 1, 1)
    for q in (one, mean):
        torch.testing.assert_close(q.mean(), mixture.mean(), atol=1e-6, rtol=0)
        assert q.count == mixture.count
    torch.testing.assert_close(one.cov(), mixture.cov(), atol=1e-5, rtol=0)
    assert mean.cov().trace() == pytest.approx(4 * 0.09, rel=1e-5)
    assert one.cov().trace() > mean.cov().trace()


def test_class_that_no_client_sent_has_no_mixture_and_no_prior(problem: Any) -> None:
    own = {k: {c: q for c, q in g.items() if c != 2} for k, g in sent().items()}
    model = aggregate(own, 6, problem.options())
    assert model.missing == (2, 4, 5)
    assert model.prior[[2, 4, 5]].tolist() == [0, 0, 0]
    assert model.prior.sum() == pytest.approx(1)
    assert class_sizes(model, [1, 2], 50, "prior") == {1: 50, 2: 0}


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({}, "no client sent"),
        ({0: {}}, "no client sent"),
        ({0: {7: ClassGaussian(torch.zeros(2), torch.eye(2), 1)}}, "class 7"),
        (
            {
                0: {0: ClassGaussian(torch.zeros(2), torch.eye(2), 1)},
                1: {0: ClassGaussian(torch.zeros(3), torch.eye(3), 1)},
            },
            r"different lengths, \{0: 2, 1: 3\}",
        ),
    ],
)
def test_what_cannot_be_aggregated_is_refused(own: Any, says: str, problem: Any) -> None:
    with pytest.raises(InputError, match=says):
        aggregate(own, 4, problem.options())


def test_sizes_follow_the_prior_or_are_equal(problem: Any) -> None:
    model = problem.model([670, 110, 20, 200])
    by_prior = class_sizes(model, [0, 1, 2, 3], 1000, "prior")
    assert by_prior == {0: 1266, 1: 911, 2: 684, 3: 1139}
    assert class_sizes(model, [0, 2], 1000, "equal") == {0: 1000, 2: 1000}
    assert sum(class_sizes(model, [0, 2], 1000, "prior").values()) == 2000
    assert min(class_sizes(model, [0, 1, 2, 3], 1, "prior").values()) == 1


def test_synthetic_features_come_class_by_class_from_one_stream(problem: Any) -> None:
    model = problem.model([5, 5, 0, 5])
    sizes = {3: 4, 0: 2, 2: 0}
    z, y = synthesise(model.mixtures, sizes, seeds.torch_generator(0))
    again, _ = synthesise(model.mixtures, dict(reversed(sizes.items())), seeds.torch_generator(0))
    assert y.tolist() == [0, 0, 3, 3, 3, 3]
    assert torch.equal(z, again)
    with pytest.raises(InputError, match=r"classes \[2\], which no client sent; allowed: \[0, 1, 3\]"):
        synthesise(model.mixtures, {2: 1}, seeds.torch_generator(0))


def test_server_model_is_stored_and_read_without_loss(problem: Any) -> None:
    model = problem.model([3, 0, 4], components=2)
    back = GlobalModel.from_tensors(load(save(model.to_tensors())))
    x, y = model.to_tensors(), back.to_tensors()
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert back.missing == (1,)


def test_presets_differ_where_paper_and_code_do() -> None:
    paper, code = preset("paper"), preset("code")
    assert paper == Options()
    assert (paper.objective, paper.source, paper.covariance, paper.shared_space) == (
        "vi",
        "proxy",
        "class",
        "anchor",
    )
    assert (code.objective, code.source, code.covariance, code.shared_space) == (
        "ce",
        "moments",
        "tied_total",
        "avg",
    )
    assert (paper.synthetic_per_class, code.synthetic_per_class) == (2000, 20_000)
    assert (paper.evaluated_by, code.evaluated_by) == ("per_client", "avg")
    assert (paper.epochs, paper.lr, paper.batch_size, paper.mc_samples) == (50, 1e-4, 128, 5)
    assert (paper.replay_per_class, paper.kd_weight, paper.kd_temperature) == (8000, 0.2, 2.0)
    assert preset("paper", shared_space="frozen").evaluated_by == "frozen"
    assert preset("paper", shared_space="frozen", trained="neck").evaluated_by == "per_client"


def test_what_the_paper_leaves_open_has_the_documented_values() -> None:
    chosen = {
        "tau": 0.6,  # the only value that is printed anywhere
        "exclude_positive": False,  # the text calls it a likelihood
        "kl_weight": 1.0,
        "kl_scale": "1/N",  # the loss is then the negative ELBO of a sample
        "prior_scale": None,  # 1 / sqrt(d)
        "init_scale": None,  # 0.1 / sqrt(d)
        "sampler": "shuffle",
        "batch_norm": "frozen",
        "shared_space": "anchor",
        "beta": 0.5,
        "floor": 0.05,
        "cap": 0.25,
        "exact_clip": False,
        "footnote": "init",
        "head": "linear",
        "head_scope": "seen",
        "head_init": "mixture",
        "optimizer_state": "reset",
        "min_count": 1,
    }
    assert {name: getattr(preset("paper"), name) for name in chosen} == chosen


def test_every_option_belongs_to_one_step() -> None:
    names = [name for part in PARTS.values() for name in part]
    assert len(names) == len(set(names)) == len(Options.__dataclass_fields__)
    assert preset("paper").part("clients") == preset("paper", head="cosine", source="moments").part("clients")


@pytest.mark.parametrize(
    "changes",
    [
        {"tau": 0.0},
        {"tau": "x"},
        {"epochs": 2.5},
        {"epochs": True},
        {"beta": 1.5},
        {"floor": 0.5, "cap": 0.1},
        {"clip": -1.0},
        {"init_scale": 0.0},
        {"head": "mlp"},
        {"mc_samples": 0},
        {"eval_encoder": "avg"},
        {"eval_encoder": "frozen"},
        {"shared_space": "frozen", "trained": "all"},
        {"objective": "ce"},
        {"objective": "ce", "source": "moments"},
        {"optimizer_state": "keep"},
        {"lr": float("nan")},
        {"head_weight_decay": -1},
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_computation(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="allowed"):
        preset("paper", **changes)


def test_unknown_option_and_preset_name_the_closest() -> None:
    with pytest.raises(InputError, match="did you mean 'kd_weight'"):
        preset("paper", kd_wieght=0.1)
    with pytest.raises(InputError, match="did you mean 'paper'"):
        preset("papers")
