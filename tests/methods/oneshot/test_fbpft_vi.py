"""FBPFT-VI is VCL-FPFT with a frozen encoder, Gaussians of the features, a cosine head and one task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlib import models
from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot import base, frozen_features
from fedlib.methods.oneshot.fbpft_vi import fbpft_options, fbpft_vi, small_options
from fedlib.methods.vcl.inputs import FeatureData
from fedlib.methods.vcl.pipeline import run_vcl


def encoders(client: int) -> models.Embedder:
    return models.embedder("cnn3_bn", dim=6, in_channels=1, image_size=8, seed=0)


def test_it_is_vcls_code_path_with_one_task(clients: list[ImageData], test_data: ImageData) -> None:
    options = small_options()
    result = fbpft_vi(clients, encoders, 3, options, seed=4)
    whole = run_vcl(dict(enumerate(clients)), test_data, encoders, [range(3)], options, 4, 3)
    expected = whole.run.head(0)
    assert torch.equal(result.model.head.weight, expected.weight)
    assert torch.equal(result.model.head.bias, expected.bias)
    predicted = base.logits(result.model, test_data).argmax(1)
    assert np.array_equal(predicted, whole.evaluations["frozen"].predicted["cil"])


def test_one_upload_of_two_d_plus_one_values_for_each_class(
    clients: list[ImageData], test_data: ImageData
) -> None:
    result = fbpft_vi(clients, encoders, 3, small_options(), seed=0)
    assert result.ledger.uplinks() == {0: 1, 1: 1}
    for message in result.ledger.messages:
        values = sum(int(np.prod(shape)) for shape in message.shapes.values())
        # mean, spread and count; and the number of each class
        assert 3 * (2 * 6 + 1) <= values <= 3 * (2 * 6 + 2)
    assert result.scores(test_data)["accuracy"] > 70
    assert result.budget["head"] == "cosine"


def test_cached_features_give_the_same_head(clients: list[ImageData]) -> None:
    cached = [FeatureData(z, y.numpy()) for z, y in frozen_features.client_features(encoders(0), clients)]
    images = fbpft_vi(clients, encoders, 3, small_options(), seed=0).model.head.weight
    features = fbpft_vi(cached, lambda client: torch.nn.Identity(), 3, small_options(), seed=0)
    assert torch.allclose(features.model.head.weight, images, atol=1e-5)


def test_options_are_those_of_the_readme() -> None:
    options = fbpft_options()
    assert (options.shared_space, options.source, options.vi_recipe) == ("frozen", "feature_vi", "ours")
    assert (options.head, options.head_scale, options.head_epochs, options.head_lr) == (
        "cosine",
        14.0,
        30,
        1e-3,
    )
    assert (options.beta, options.synthetic_per_class) == (0.1, 8000)
    with pytest.raises(InputError, match="heads"):
        fbpft_options(heads="cosine")
