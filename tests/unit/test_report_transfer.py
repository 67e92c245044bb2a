"""Pictures of features show all sets in one map, with and without t-SNE."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from fedlib.experiments.vcl_pages import LABELS
from fedlib.report.transfer import against_bytes, in_two_dimensions
from fedlib.seeds import torch_generator

NAMES = ["left", "right"]


def features() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two classes far apart in eight dimensions, in two sets of 20 points."""
    labels = torch.arange(2).repeat_interleave(10)
    centres = torch.tensor([-3.0, 3.0])[labels, None]
    noise = torch.randn(2, 20, 8, generator=torch_generator(0, "points"))
    return {name: (centres + 0.1 * noise[place], labels) for place, name in enumerate(["real", "drawn"])}


def points(figure: plt.Figure) -> list[np.ndarray]:
    """Coordinates of each panel, classes in order."""
    return [np.concatenate([dots.get_offsets() for dots in axis.collections]) for axis in figure.axes]


def test_neighbours_add_a_row_and_leave_the_plane_as_it_was() -> None:
    plain = in_two_dimensions(features(), class_names=NAMES, title="plain")
    both = in_two_dimensions(features(), class_names=NAMES, title="both", neighbours=True)
    assert len(plain.axes) == 2
    assert len(both.axes) == 4
    for one, other in zip(points(plain), points(both)[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    plt.close("all")


def test_t_sne_is_one_map_of_all_sets_and_the_same_in_every_run() -> None:
    maps = [
        points(in_two_dimensions(features(), class_names=NAMES, title="map", neighbours=True))[2:]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(maps[0], maps[1])
    real, drawn = maps[0]
    across = np.linalg.norm(real[:10].mean(0) - real[10:].mean(0))
    between_sets = np.linalg.norm(real[:10].mean(0) - drawn[:10].mean(0))
    assert between_sets < 0.3 * across, "the same class of both sets lies in one place"
    plt.close("all")


def test_a_handful_of_points_has_a_map() -> None:
    few = {name: (z[8:12], y[8:12]) for name, (z, y) in features().items()}
    assert len(in_two_dimensions(few, class_names=NAMES, title="few", neighbours=True).axes) == 4
    plt.close("all")


def test_the_sets_share_the_axes_of_their_row() -> None:
    axes = in_two_dimensions(features(), class_names=NAMES, title="axes", neighbours=True).axes
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[2].get_ylim() == axes[3].get_ylim()
    assert axes[0].get_xlim() != axes[2].get_xlim()
    plt.close("all")


def test_every_method_has_a_marker_of_its_own() -> None:
    rows = [
        {"seed": 0, "partition": "IID", "method": name, "metric": metric, "value": 10.0}
        for name in LABELS
        for metric in ("overall_accuracy", "uplink_bytes")
    ]
    figure = against_bytes(pd.DataFrame(rows), names=LABELS, title="bytes", ylabel="accuracy, %")
    markers = [str(line.get_marker()) for line in figure.axes[0].lines if str(line.get_marker()) != "None"]
    assert len(set(markers)) == len(LABELS)
    plt.close("all")
