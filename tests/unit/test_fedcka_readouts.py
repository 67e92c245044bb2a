"""Numbers read from runs of federated detection, on tables made by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from torch import nn

from fedlib.errors import InputError
from fedlib.experiments import fedcka_readouts as readouts
from fedlib.experiments.study import Study
from fedlib.methods.fedcka.layers import partition
from fedlib.models.detector import build, preset


def study(rows: list[tuple[Any, ...]]) -> Study:
    columns = ["seed", "method", "round", "client", "domain", "metric", "value"]
    return Study((), pd.DataFrame(rows, columns=columns).assign(masking="threshold", level=0.9))


def kept(seed: int, client: str, number: int, **layers: int) -> list[tuple[Any, ...]]:
    return [
        (seed, "fedcka", number, client, "all", f"personal/{name}", value) for name, value in layers.items()
    ]


def test_own_scores_are_the_diagonal_and_the_means() -> None:
    rows = [(0, "fedcka", 2, a, b, "nds", 0.1) for a in "AB" for b in "AB"]
    rows += [(0, "fedcka", 2, "all", "all", "nds_weighted", 0.1), (0, "fedcka", 2, "A", "A", "ap_car", 0.3)]
    found = readouts.own_scores(study(rows))
    assert list(zip(found["client"], found["domain"], strict=True)) == [
        ("A", "A"),
        ("B", "B"),
        ("all", "all"),
    ]


def test_clients_above_their_own_model_are_counted_seed_by_seed() -> None:
    alone = [(s, "own_domain", 2, c, "all", "own_nds", 0.3 + s) for s in (0, 1) for c in "AB"]
    federated = [
        (0, "fedavg", 2, "A", "all", "own_nds", 0.4),
        (0, "fedavg", 2, "B", "all", "own_nds", 0.3),  # the same is not above
        (1, "fedavg", 2, "A", "all", "own_nds", 1.4),
        (1, "fedavg", 2, "B", "all", "own_nds", 1.5),
    ]
    found = readouts.above_own_domain(study(alone + federated)).set_index("seed")["value"]
    assert found.to_dict() == {0: 1.0, 1: 2.0}
    with pytest.raises(InputError, match="own_domain"):
        readouts.above_own_domain(study(federated))


def test_every_layer_of_the_detector_has_a_part() -> None:
    model = build(preset("tiny"), 0)
    modules = dict(model.named_modules())
    parts = {layer.name: readouts.part_of(layer.name, modules[layer.name]) for layer in partition(model)}
    assert set(parts.values()) == set(readouts.PARTS)
    assert parts["heads.0.cls.1"] == "head"  # a LayerNorm
    assert parts["lidar.stem.1"] == parts["decoder.0.norm1"] == "normalization"
    assert parts["lidar.stem.0"] == parts["img.0.0"] == "backbone"
    assert parts["lidar.out.0"] == parts["img.4"] == "neck"
    assert parts["decoder.1.cross_attention.q"] == "attention"
    assert parts["decoder.0.ffn.0"] == parts["embed.bev.0"] == "other"


def test_shares_of_parts_are_weighted_by_parameters_and_taken_over_clients_and_rounds() -> None:
    model = nn.ModuleDict({"img": nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(6, 2, bias=False))})
    rows = [
        row
        for client, first in (("A", 1), ("B", 0))
        for row in kept(0, client, 2, **{"img.0": first, "img.1": 0})
    ]
    (share,) = readouts.personalized_by_part(study(rows), model)["value"]
    assert share == pytest.approx(4 / (2 * 16))


def test_agreement_is_the_jaccard_index_of_the_same_client_and_round() -> None:
    assert readouts.jaccard(set(), set()) == 1
    assert readouts.jaccard({"a", "b"}, {"b", "c"}) == pytest.approx(1 / 3)
    one = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "A", 3, a=0, b=0, c=0)
    two = kept(1, "A", 2, a=0, b=1, c=1) + kept(1, "A", 3, a=0, b=0, c=0)
    found = readouts.agreement_over_seeds(study(one + two))
    assert found["value"].tolist() == pytest.approx([(1 / 3 + 1) / 2])
    again = [(0, *row[1:]) for row in two]
    found = readouts.agreement_of_inputs(study(one), study(again))
    assert found["value"].tolist() == pytest.approx([(1 / 3 + 1) / 2])
    with pytest.raises(InputError, match="FedCKA"):
        readouts.agreement_over_seeds(study([(0, "fedavg", 2, "A", "A", "nds", 0.1)]))
