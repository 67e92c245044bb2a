"""The table of uploads, measured and by the paper's first-order model, and the figure beside a score."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from fedlib.report import footprint

NAMES = {"fedavg": "FedAvg", "fedcka": "FedCKA", "feddyn": "FedDyn"}
MEASURED = {
    "fedavg": {
        "shared_share": 1.0, "upload_bytes": 4100.0, "mask_bytes": 0.0,
        "modelled_bytes": 4000.0, "modelled_mask_bytes": 0.0,
    },
    "fedcka": {
        "shared_share": 0.5, "upload_bytes": 2050.0, "mask_bytes": 80.0,
        "modelled_bytes": 2013.0, "modelled_mask_bytes": 13.0,
    },
}  # fmt: skip


@pytest.fixture
def rows() -> pd.DataFrame:
    found = [
        (seed, method, metric, value)
        for seed in (0, 1)
        for method, line in MEASURED.items()
        for metric, value in line.items()
    ]
    return pd.DataFrame(found, columns=["seed", "method", "metric", "value"])


def test_bytes_are_shown_in_words_and_units_in_the_order_of_the_names(rows: pd.DataFrame) -> None:
    table = footprint.measured(rows, NAMES)
    assert list(table.index) == ["FedAvg", "FedCKA"]
    assert table.loc["FedCKA"].to_list() == ["50.0", "2.0", "80", "0.500"]
    model = footprint.modelled(rows, NAMES)
    assert model.loc["FedCKA"].to_list() == ["2.0", "13", "0.503", "+1.8"]
    assert model.loc["FedAvg"].to_list() == ["4.0", "0", "1.000", "+2.5"]


def test_each_method_stands_where_its_upload_and_its_score_are(rows: pd.DataFrame) -> None:
    scores = pd.DataFrame(
        [(s, m, v + 0.01 * s) for s in (0, 1) for m, v in (("fedavg", 0.3), ("fedcka", 0.4), ("other", 0.5))],
        columns=["seed", "method", "value"],
    )
    figure = footprint.against_upload(rows, scores, NAMES, label="NDS", title="t")
    points = [
        tuple(float(v) for v in line.get_xydata()[0])
        for line in figure.axes[0].lines
        if line.get_marker() in "os"
    ]
    assert (1.0, pytest.approx(0.305)) in points
    assert (0.5, pytest.approx(0.405)) in points
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FedCKA"]
    plt.close(figure)
