"""Golden values of the method page that rest on the shared statistics, readout and network; and exactness."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from fedlib import models
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import MahalanobisNCM, prototypes
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import depart, reconstruct


def test_golden_m4_mahalanobis_distances():
    means = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    readout = MahalanobisNCM(means, torch.diag(torch.tensor([4.0, 1.0])))
    z = torch.tensor([[1.0, 1.1]])
    expected = torch.tensor([[1.46, 2.21, 1.06]], dtype=torch.float64)
    assert_close(readout.distances(z), expected, atol=1e-6, rtol=1e-6)
    assert readout.predict(z).tolist() == [2]


def test_golden_m6_parameters_of_the_default_network():
    net = models.build("cnn3", num_classes=10, in_channels=3, image_size=32, seed=0)
    assert models.parameter_count(net) == 94_538


def test_golden_m8_merge_of_two_clients():
    parts = []
    for values in ([0.0, 2.0], [4.0 - 3**0.5, 4.0, 4.0 + 3**0.5]):  # n 2, mu 1, W 2 and n 3, mu 4, W 6
        part = ClassMoments(1, 1)
        part.update(
            torch.tensor(values, dtype=torch.float64)[:, None], torch.zeros(len(values), dtype=torch.int64)
        )
        parts.append(part)
    merged = ClassMoments.merge(parts)
    assert_close(float(merged.mean), 2.8)
    assert_close(float(merged.scatter), 18.8)


def test_mpt_of_many_vehicles_equals_mpt_with_all_features_in_one_place(random):
    """Federated = central to 1e-10: departure, covariance, weight and prototype."""
    z0, z1 = 5 + random(1, 300, 9), 5 + random(2, 300, 9) @ torch.diag(torch.linspace(0.5, 2, 9).double())
    y = torch.arange(300) % 6
    spread = [17, 1, 90, 192]

    def moments(z, sizes):
        parts = []
        for a, b in zip(z.split(sizes), y.split(sizes)):
            part = ClassMoments(6, 9, leave_out=(2,))
            for rows in torch.arange(len(a)).split(11):  # in batches
                part.update(a[rows], b[rows])
            parts.append(part)
        return ClassMoments.merge(parts[::-1])

    found = []
    for sizes in ([300], spread):
        then, now = moments(z0, sizes), moments(z1, sizes)
        options = MPTOptions()
        record = depart(2, prototypes(then), z0[y == 2].mean(0), options, covariance=then.covariance())
        found.append(
            reconstruct(record, prototypes(now), int(now.count[2]), options, covariance=now.covariance())
        )
    central, federated = found
    assert_close(federated.prototype, central.prototype, atol=1e-10, rtol=1e-10)
    assert_close(federated.alpha, central.alpha, atol=1e-10, rtol=1e-10)
    assert 0 < central.alpha < 1
