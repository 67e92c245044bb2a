"""Every repetition is a point."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedlib.report.repeats import repetitions


def test_every_repetition_and_the_mean_are_drawn_in_the_order_of_the_names() -> None:
    frame = pd.DataFrame(
        [(0, "b", 0.2), (1, "b", 0.4), (0, "a", 0.5), (1, "a", 0.5), (0, "other", 0.9), (1, "other", 0.9)],
        columns=["seed", "method", "value"],
    )
    figure = repetitions(frame, {"a": "first", "b": "second", "c": "absent"}, label="NDS", title="t")
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["first", "second"]
    points = {line.get_label(): line for line in axis.lines if str(line.get_label()).startswith("seed")}
    assert points["seed 1"].get_xdata() == pytest.approx([0.5, 0.4])
    assert (np.round(points["seed 1"].get_ydata()) == [0, 1]).all()
    upright = [line.get_xdata()[0] for line in axis.lines if not str(line.get_label()).startswith("seed")]
    assert upright == pytest.approx([0.5, 0.3])
    assert len({line.get_marker() for line in points.values()}) == 2, "not told apart by colour alone"
    plt.close(figure)
