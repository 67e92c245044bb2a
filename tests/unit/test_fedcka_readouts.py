"""Numbers read from runs of federated detection, on tables made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedlib.errors import InputError
from fedlib.experiments import fedcka_masks as masks
from fedlib.experiments import fedcka_readouts as readouts
from fedlib.experiments.study import Study


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


def test_agreement_is_the_jaccard_index_of_the_same_client_and_round() -> None:
    assert masks.jaccard({"a", "b"}, {"b", "c"}) == pytest.approx(1 / 3)
    one = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "A", 3, a=1, b=0, c=0)
    two = kept(0, "A", 2, a=0, b=1, c=1) + kept(0, "A", 3, a=1, b=0, c=0)
    found = readouts.agreement_of_inputs(study(one), study(two), ["A"])
    assert found["value"].tolist() == pytest.approx([(1 / 3 + 1) / 2])


def test_masks_that_keep_nothing_do_not_count_as_agreement() -> None:
    assert np.isnan(masks.jaccard(set(), set()))
    assert np.isnan(masks.chance_jaccard(0, 0, 3))
    one = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "A", 3, a=0, b=0, c=0) + kept(1, "A", 2, a=0, b=0, c=0)
    two = kept(0, "A", 2, a=0, b=1, c=1) + kept(0, "A", 3, a=0, b=0, c=0) + kept(1, "A", 2, a=0, b=0, c=0)
    found = readouts.agreement_of_inputs(study(one), study(two), ["A"])
    assert found["value"].tolist() == pytest.approx([1 / 3, np.nan], nan_ok=True)


def test_a_client_that_took_all_its_frames_twice_does_not_count_as_agreement() -> None:
    one = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "E", 2, a=1, b=0, c=0)
    two = kept(0, "A", 2, a=0, b=1, c=1) + kept(0, "E", 2, a=1, b=0, c=0)
    found = readouts.agreement_of_inputs(study(one), study(two), ["A"])
    assert found["value"].tolist() == pytest.approx([1 / 3])
    assert readouts.agreement_of_inputs(study(one), study(two), [])["value"].isna().tolist() == [True]
