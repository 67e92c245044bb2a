"""What makes the features of different clients comparable (the paper's "shared space", whose sentence is lost).

=============  ========  =====================================================================================
shared_space   uplinks   recipe
=============  ========  =====================================================================================
``avg``        2         unweighted mean of the clients' encoders, then a second pass for the Gaussians (code)
``frozen``     1         one common encoder that nobody trains, or of which only the neck is trained
``anchor``     1         proxies start at published class anchors and are held to them
``proxyset``   1         proxies stay at the anchors, their covariance is learned
``pubdata``    1         features of public unlabelled images are held to those of the common initial encoder
``local``      1         nothing: the negative control
=============  ========  =====================================================================================

All but ``avg`` work with clients of different architecture. The server publishes a seed, from which every client
makes the same anchors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.aggregation import weighted_mean
from fedlib.federation.messages import Update
from fedlib.federation.model_state import State, check_same_model

ANCHORED = ("anchor", "proxyset")


def anchors(num_classes: int, dim: int, seed: int) -> Tensor:
    """Return class anchors a_c of length 1, float32 (C, d): the corners of a simplex in a random subspace.

        A = sqrt(C / (C - 1)) Q (I - 1 1^T / C)     with Q (d, C) orthonormal;   A = Q for C = 1

    Any two have the cosine -1/(C - 1), the least that C vectors can have.

    Raises:
        InputError: more classes than dimensions.
    """
    if not 1 <= num_classes <= dim:
        raise InputError(f"{num_classes} anchors in {dim} dimensions; allowed: 1 to {dim}")
    generator = seeds.torch_generator(seed, "vcl/anchors", num_classes, dim)
    q, _ = torch.linalg.qr(torch.randn(dim, num_classes, generator=generator, dtype=torch.float64))
    if num_classes > 1:
        centred = q - q.mean(dim=1, keepdim=True)
        q = (num_classes / (num_classes - 1)) ** 0.5 * centred
    return q.T.contiguous().float()


def anchor_loss(mean: Tensor, anchor: Tensor) -> Tensor:
    """Return sum_c (1 - cos(m_c, a_c)), (), of proxies and anchors (C, d)."""
    return (1 - functional.cosine_similarity(mean, anchor, dim=1)).sum()


def public_loss(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean of 1 - cos between features and those of the common initial encoder, both (B, d)."""
    return (1 - functional.cosine_similarity(features, reference, dim=1)).mean()


def average_encoders(states: Mapping[int, State]) -> State:
    """Return the unweighted mean of the clients' encoders; integer buffers take the largest value.

    The code takes client 0's integer buffers (BatchNorm's batch counter), which the forward pass does not use.

    Args:
        states: by client id.

    Raises:
        InputError: no encoder, or encoders of different architecture.
    """
    if not states:
        raise InputError("no encoders to average; allowed: at least one")
    first = states[min(states)]
    for client, state in sorted(states.items()):
        try:
            check_same_model(state, first)
        except InputError as error:
            raise InputError(
                f"shared_space 'avg' needs encoders of one architecture; client {client}: {error}"
            ) from None
    return weighted_mean([Update(client, 1, state) for client, state in states.items()], first)
