"""What FedCKA keeps, on tables made by hand."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedlib.errors import InputError
from fedlib.experiments import fedcka_masks as masks
from fedlib.experiments.study import Study
from fedlib.methods.fedcka.layers import partition
from fedlib.models.detector import build, preset
from fedlib.report.register import TREND, lookup
from fedlib.report.verdict import DataUse, Provenance, judge

LAYERS = pd.DataFrame(
    {"part": ["backbone", "head", "head"], "branch": "image branch", "parameters": [6, 3, 1]},
    index=pd.Index(["a", "b", "c"], name="layer"),
)


def study(rows: list[tuple[Any, ...]], **labels: Any) -> Study:
    columns = ["seed", "client", "round", "metric", "value"]
    frame = pd.DataFrame(rows, columns=columns).assign(method="fedcka", masking="threshold", level=0.9)
    return Study((), frame.assign(**labels))


def said(metric: str, seed: int, client: str, number: int, **layers: float) -> list[tuple[Any, ...]]:
    return [(seed, client, number, f"{metric}/{name}", value) for name, value in layers.items()]


def kept(seed: int, client: str, number: int, **layers: float) -> list[tuple[Any, ...]]:
    return said("personal", seed, client, number, **layers)


def values(rows: pd.DataFrame, *by: str) -> dict[Any, float]:
    found: dict[Any, float] = rows.set_index(list(by))["value"].to_dict()
    return found


def test_every_layer_of_the_detector_has_a_part_and_a_branch() -> None:
    model = build(preset("tiny"), 0)
    found = masks.anatomy(model)
    assert list(found.index) == [layer.name for layer in partition(model)]
    assert found["parameters"].sum() == sum(p.numel() for p in model.parameters())
    assert set(found["part"]) == set(masks.PARTS)
    assert set(found["branch"]) == set(masks.BRANCHES.values())
    part = found["part"]
    assert part["heads.0.cls.1"] == "head"  # a LayerNorm
    assert part["lidar.stem.1"] == part["decoder.0.norm1"] == "normalization"
    assert part["lidar.stem.0"] == part["img.0.0"] == "backbone"
    assert part["lidar.out.0"] == part["img.4"] == "neck"
    assert part["decoder.1.cross_attention.q"] == "attention"
    assert part["decoder.0.ffn.0"] == part["embed.bev.0"] == "other"


def test_parts_are_weighted_by_parameters_or_by_layers_over_clients_and_rounds() -> None:
    rows = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "B", 2, a=0, b=0, c=0) + kept(0, "A", 3, a=0, b=0, c=1)
    found = values(masks.kept_by_part(study(rows), LAYERS), "metric", "part")
    assert found["personalized_share", "backbone"] == found["kept_rate", "backbone"] == pytest.approx(1 / 3)
    assert found["personalized_share", "head"] == pytest.approx((3 + 1) / (3 * 4))
    assert found["kept_rate", "head"] == pytest.approx(2 / 6)
    by_client = values(masks.kept_by_part(study(rows), LAYERS, by=["client"]), "client", "metric", "part")
    assert by_client["B", "kept_rate", "head"] == 0
    assert by_client["A", "kept_rate", "head"] == pytest.approx(2 / 4)


def test_heads_are_told_apart_by_what_they_predict() -> None:
    heads = {"heads.0.cls.0": 1, "heads.1.cls.3": 0, "heads.0.size.3": 1, "lidar.stem.0": 1}
    found = values(masks.kept_in_heads(study(kept(0, "A", 2, **heads))), "quantity")
    assert found == {"cls": 0.5, "size": 1.0}


def test_maps_have_layers_in_network_order_and_no_number_where_there_is_no_score() -> None:
    rows = said("cka", 0, "B", 2, c=0.5, a=0.1) + said("cka", 1, "B", 2, c=0.7, a=0.1)
    rows += said("cka", 0, "A", 2, a=0.2)
    table = masks.maps(study(rows), LAYERS, "cka")
    assert list(table.index) == ["a", "b", "c"]
    assert list(table.columns) == [("A", 2), ("B", 2)]
    assert table["B", 2].tolist()[::2] == pytest.approx([0.1, 0.6])
    assert np.isnan(table.loc["b"]).all()


def test_for_fixed_scores_the_share_counts_parameters_below_the_threshold() -> None:
    rows = said("cka", 0, "A", 2, a=0.5, b=0.2, c=1.0)
    found = values(masks.share_at_fixed_scores(study(rows), LAYERS, [0, 0.5, 0.6, 1]), "level")
    assert found == pytest.approx({0.0: 0, 0.5: 0.3, 0.6: 0.9, 1.0: 0.9}), "strictly below"


def test_one_level_is_the_best_for_all_seeds_and_the_limits_are_none() -> None:
    def scored(masking: str, level: float, *seeds: float) -> pd.DataFrame:
        rows = [(seed, "all", 4, "nds_weighted", value) for seed, value in enumerate(seeds)]
        return study(rows, masking=masking, level=level).metrics

    frame = pd.concat(
        [
            scored("threshold", 0.0, 0.9, 0.9),
            scored("threshold", 0.5, 0.4, 0.4),
            scored("threshold", 0.9, 0.5, 0.2),  # best in one seed only
            scored("percentage", 0.1, 0.3, 0.2),
        ]
    )
    whole = Study((), frame)
    assert masks.best_level(whole, "threshold") == 0.5
    found = masks.best_scores(whole)
    assert values(found, "masking", "seed") == {
        ("threshold", 0): 0.4,
        ("threshold", 1): 0.4,
        ("percentage", 0): 0.3,
        ("percentage", 1): 0.2,
    }
    assert "level" not in found
    with pytest.raises(InputError, match="between 0 and 1"):
        masks.best_level(Study((), scored("threshold", 1.0, 0.4)), "threshold")


def test_masks_of_seeds_agree_by_client_and_round_and_empty_ones_say_nothing() -> None:
    one = kept(0, "A", 2, a=1, b=1, c=0) + kept(0, "B", 2, a=0, b=0, c=0)
    two = kept(1, "A", 2, a=0, b=1, c=1) + kept(1, "B", 2, a=0, b=0, c=0)
    three = kept(2, "A", 2, a=0, b=1, c=1) + kept(2, "B", 2, a=0, b=1, c=0)
    found = values(masks.agreement_over_seeds(study(one + two + three)), "metric", "seed")
    same = "mask_agreement_over_seeds"
    assert found[same, 0] == pytest.approx(1 / 3), "client B keeps nothing in either"
    assert found[same, 1] == pytest.approx((1 + 0) / 2)
    assert found[same, 2] == pytest.approx((1 / 3 + 0) / 2), "the last with the first"
    assert found["mask_agreement_over_clients", 1] == pytest.approx((1 / 2 + 0) / 2)
    alone = masks.agreement_over_seeds(study(one))
    assert alone["value"].isna().all(), "nothing to compare with"
    with pytest.raises(InputError, match="FedCKA"):
        masks.agreement_over_seeds(study([(0, "A", 2, "nds", 0.1)]))


@pytest.mark.parametrize(("first", "second", "of"), [(2, 3, 5), (4, 3, 5), (0, 2, 4), (3, 3, 3)])
def test_agreement_by_chance_is_the_mean_over_all_pairs_of_sets(first: int, second: int, of: int) -> None:
    sets = [[set(map(str, chosen)) for chosen in combinations(range(of), n)] for n in (first, second)]
    expected = np.mean([masks.jaccard(a, b) for a, b in product(*sets)])
    assert masks.chance_jaccard(first, second, of) == pytest.approx(expected)


def test_layers_that_are_kept_anew_and_shared_again_are_counted_by_part() -> None:
    rows = kept(0, "A", 3, a=1, b=1, c=0) + kept(0, "A", 2, a=0, b=1, c=1) + kept(0, "A", 4, a=0, b=1, c=1)
    found = values(masks.changes(study(rows), LAYERS), "metric", "part")
    assert found == {
        ("kept_anew", "backbone"): 1,
        ("kept_anew", "head"): 1,
        ("shared_again", "backbone"): 1,
        ("shared_again", "head"): 1,
    }


def test_one_level_of_a_study_has_its_own_runs_and_rows() -> None:
    frames = [study([(0, "A", 2, "nds", level)], level=level).metrics for level in (0.0, 0.9)]
    whole = Study(("first", "second"), pd.concat(frames))  # type: ignore[arg-type]
    found = masks.at_level(whole, "threshold", 0.9)
    assert found.runs == ("second",)
    assert found.metrics["value"].tolist() == [0.9]
    with pytest.raises(InputError, match=r"level 0\.5"):
        masks.at_level(whole, "threshold", 0.5)


def test_the_claims_on_masks_can_be_judged_on_these_rows() -> None:
    origin = Provenance(data=(DataUse(name="roadworld-drives", kind="surrogate"),), profile="quick")
    layers = LAYERS.assign(part=["backbone", "head", "neck"])
    more = pd.DataFrame(
        {"part": ["normalization", "attention"], "branch": "", "parameters": 1}, index=["d", "e"]
    )
    layers = pd.concat([layers, more]).rename_axis("layer")
    rows = [
        row
        for seed in (0, 1, 2)
        for number, head in ((2, 1), (3, 0), (4, 0))
        for row in kept(seed, "A", number, a=1, b=head, c=1, d=1, e=1)
    ]
    own = study(rows)
    word = {
        claim: judge(lookup(claim), frame, origin).word
        for claim, frame in (
            ("CKA-14", masks.agreement_over_seeds(own)),
            ("CKA-19", masks.kept_by_part(own, layers)),
        )
    }
    assert word == {"CKA-14": TREND, "CKA-19": TREND}
    scored = [
        study(
            [(seed, "all", 4, "nds_weighted", value + 0.01 * seed) for seed in (0, 1, 2)],
            masking=mode,
            level=level,
        )
        for mode, level, value in (
            ("threshold", 0.0, 0.9),
            ("threshold", 0.9, 0.5),
            ("percentage", 0.1, 0.3),
            ("percentage", 0.4, 0.4),
        )
    ]
    whole = Study((), pd.concat([part.metrics for part in scored]))
    verdict = judge(lookup("CKA-21"), masks.best_scores(whole), origin)
    assert verdict.word == TREND
    assert verdict.parts[0].effect.mean == pytest.approx(0.1)
