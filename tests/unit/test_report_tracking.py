"""What the MPT pages derive from tracked prototypes, on small frames and tensors."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from fedlib.report import tracking


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def rows() -> pd.DataFrame:
    found = [
        (seed, method, "after" if number > 2 else "before", number, "rare_f1", value + number / 100)
        for seed in (0, 1)
        for method, value in (("mpt", 0.8), ("oracle", 0.9))
        for number in range(1, 11)
    ]
    return pd.DataFrame(found, columns=["seed", "method", "phase", "round", "metric", "value"])


def test_a_method_carries_the_registry_s_name_unless_the_page_gives_another(rows):
    assert set(tracking.labelled(rows)["label"]) == {"MPT", "oracle"}
    assert set(tracking.labelled(rows, {"mpt": "ours"})["label"]) == {"ours", "oracle"}
    parts = rows.assign(method="barycentric")
    assert set(tracking.labelled(parts)["label"]) == {"barycentric"}


def test_the_rounds_after_the_departure_can_be_cut_to_their_last_share(rows):
    assert sorted(tracking.after(rows, "rare_f1")["round"].unique()) == list(range(3, 11))
    assert sorted(tracking.after(rows, "rare_f1", share=0.25)["round"].unique()) == [9, 10]
    assert tracking.after(rows, "accuracy").empty


def test_costs_are_relative_to_the_model_and_leave_out_methods_that_send_nothing_of_their_own(rows):
    sizes = {"uplink_bytes": 1200.0, "downlink_bytes": 1000.0, "uplink_floats": 50.0, "uplink_formula": 49.0}
    cost = pd.DataFrame([{"method": "mpt", "metric": name, "value": size} for name, size in sizes.items()])
    table = tracking.costs(pd.concat([rows, cost]), model_bytes=1000)
    assert table.index.tolist() == ["MPT"]
    assert table.loc["MPT", "up, kB"] == "1.2"
    assert table.loc["MPT", "added to the upload, %"] == "20.0"
    assert table.loc["MPT", "by the formula"] == 49


def test_additions_to_a_backbone_follow_the_formulas():
    table = tracking.added_by_backbone(["cnn3"], num_classes=10, image_size=32)
    assert table.loc["cnn3", "numbers in the model"] == 94_538
    assert table.loc["cnn3", "MPT-lite adds, %"] == f"{100 * 1_291 / 94_538:.1f}"
    assert table.loc["cnn3", "MPT adds, %"] == f"{100 * 9_546 / 94_538:.1f}"
    assert table.loc["cnn3", "CCVR adds, %"] == f"{100 * 83_850 / 94_538:.1f}"


def test_truth_values_become_words_and_empty_cells_a_dash():
    table = pd.DataFrame({"a": [True, False], "b": ["partial", ""]})
    assert tracking.in_words(table).to_numpy().tolist() == [["yes", "partial"], ["no", "–"]]


def test_scores_of_prototypes_are_printed_with_equal_decimals():
    scores = {"rare_f1": 0.5, "rare_precision": 1.0, "rare_recall": 1 / 3, "accuracy": 0.9, "macro_f1": 0.8}
    table = tracking.score_table({"oracle": scores})
    assert table.loc["oracle"].tolist() == ["0.500", "1.000", "0.333", "0.900"]


def basis_and_oracle():
    # three prototypes in the plane z = 1 of a four-dimensional space; the oracle is 2 above it
    basis = torch.tensor([[0.0, 2.0, 4.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]).double()
    return basis, torch.tensor([1.0, 0.5, 3.0, 0.0]).double()


def test_the_plane_has_one_direction_in_the_span_and_one_towards_the_oracle():
    basis, oracle = basis_and_oracle()
    axes = tracking.plane(basis, oracle)
    torch.testing.assert_close(axes.T @ axes, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(axes[:, 1], torch.tensor([0.0, 0.0, 1.0, 0.0]).double())
    assert float((basis[:, 0] - basis.mean(dim=1)) @ axes[:, 0]) > 0


def view(measured: bool = True):
    basis, oracle = basis_and_oracle()
    e = torch.tensor([0.0, 0.0, 1.0, 0.0]).double()
    vectors = {"in_span": basis.mean(dim=1), "predicted": 2 * e, "residual": 1.5 * e}
    vectors |= {"measured": e} if measured else {}
    outcome = SimpleNamespace(vectors=vectors, prototype=basis.mean(dim=1) + 1.5 * e)
    return SimpleNamespace(server=SimpleNamespace(basis=basis), oracle=oracle, outcomes={"mpt": outcome}), e


def test_points_on_the_span_have_height_zero_and_residuals_their_own():
    seen, e = view()
    points = tracking.span_points({7: seen}, stored=e)
    basis, _ = basis_and_oracle()
    unit = 1 / float((basis - basis.mean(dim=1, keepdim=True)).square().sum(dim=0).mean().sqrt())
    height = points.groupby("what")["y"].max()
    assert height["remaining class"] == pytest.approx(0, abs=1e-12)
    assert height["in-span part"] == pytest.approx(0, abs=1e-12)
    assert height["oracle"] == pytest.approx(2 * unit)
    assert height["predicted"] == pytest.approx(2 * unit)
    assert height["stored residual"] == pytest.approx(unit)
    assert height["MPT"] == pytest.approx(1.5 * unit)
    assert (points["what"] == "remaining class").sum() == 3


def test_the_picture_has_a_panel_for_each_round_also_without_a_measurement():
    (first, e), (second, _) = view(), view(measured=False)
    figure = tracking.span_picture(tracking.span_points({3: first, 9: second}, e), title="parts")
    assert [axis.get_title() for axis in figure.axes] == ["round 3", "round 9"]


def test_figures_of_cost_draw_all_their_methods(rows):
    cost = rows.head(2).assign(metric="uplink_bytes", value=[2000.0, 2000.0])
    figure = tracking.cost_beside_f1(
        pd.concat([rows, cost]), cost="uplink_bytes", cost_label="kB", title="cost", order=["mpt", "oracle"],
        scale=1e-3,
    )  # fmt: skip
    left, right = figure.axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([2.0])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.865, 0.965])


def test_quantities_of_several_fractions_stand_side_by_side_in_order_of_size():
    rows = pd.DataFrame(
        {"seed": [0, 1] * 3, "remaining": [0.1, 0.1, 0.02, 0.02, 0.2, 0.2], "value": range(6)}
    )
    table = tracking.over_fractions([rows.assign(what="one"), rows.assign(what="two", value=1.0)])
    assert list(table.columns) == ["2 % remain", "10 % remain", "20 % remain"]
    assert table.loc["one", "2 % remain"] == "2.50 ± 0.71"


def test_the_gap_to_the_oracle_is_taken_round_by_round():
    rounds = ((1, "before", (0.9, 0.9)), (2, "after", (0.9, 0.5)), (3, "after", (0.8, 0.9)))
    rows = pd.DataFrame(
        {"seed": 0, "round": number, "phase": phase, "metric": "rare_f1", "method": method, "value": value}
        for number, phase, values in rounds
        for method, value in zip(("oracle", "mpt"), values, strict=True)
    )  # fmt: skip
    found = tracking.gap_to_oracle(rows)
    assert found["method"].tolist() == ["mpt", "mpt"]
    assert found["value"].tolist() == pytest.approx([0.4, -0.1])
