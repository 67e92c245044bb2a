"""Pictures of Gaussians in the plane: ellipses lie where the covariance says."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from fedlib.report.plane import Plane, planes


def test_an_ellipse_is_two_standard_deviations_around_its_mean() -> None:
    tril = np.array([[[0.5, 0.0], [0.3, 0.2]]])
    plane = Plane(np.zeros((3, 2)), np.zeros(3, dtype=int), np.array([[1.0, -1.0]]), tril)
    figure = planes({"one": plane}, title="A Gaussian")
    x, y = figure.axes[0].lines[-1].get_data()
    distance = np.linalg.solve(tril[0], np.stack([np.asarray(x) - 1, np.asarray(y) + 1]))
    assert np.allclose(np.linalg.norm(distance, axis=0), 2)
    plt.close(figure)


def test_features_alone_have_no_ellipse() -> None:
    figure = planes(
        {"a": Plane(np.ones((4, 2)), np.arange(4) % 2), "b": Plane(np.ones((1, 2)), np.zeros(1))}, title=""
    )
    assert [len(axis.lines) for axis in figure.axes] == [
        3,
        2,
    ]  # the unit circle and a row of points for each class
    plt.close(figure)
