"""The one message of a client: for each class the count, the mean and the Cholesky factor, and nothing else.

Tensors have the shapes (), (d,) and (d(d + 1)/2,) only; none has a dimension that grows with the client's data.

    full      for each class n, m and the triangle of L:   C_k (d + d(d + 1)/2 + 1) numbers
    tied      one triangle for all classes:                C_k (d + 1) + d(d + 1)/2
    diagonal  standard deviations instead of a triangle:   C_k (2 d + 1)

With one sample of a class the mean is that patient's feature vector; ``min_count`` keeps such classes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian, pack_tril, unpack_tril
from fedlib.federation.model_state import State
from fedlib.methods.vcl.presets import Options, Wire

Form = Literal["full", "tied", "diagonal"]
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def form_of(options: Options) -> Form:
    """Return the form in which the Gaussians of a source are sent."""
    if options.source == "feature_vi":
        return "diagonal"
    return "tied" if options.source == "moments" and options.covariance != "class" else "full"


def pack(gaussians: Mapping[int, ClassGaussian], form: Form = "full", wire: Wire = "float32") -> State:
    """Return the message of a client.

    Names are ``<class>/count`` (int32), ``<class>/mean`` and ``<class>/tril``, ``<class>/scale`` or ``tril``. A
    diagonal value of L that would be rounded to 0 becomes the smallest positive number of the type.

    Args:
        gaussians: by class.
        form: see above; tied Gaussians have equal L.
        wire: type of the numbers.
    """
    dtype = TYPES[wire]
    least = torch.finfo(dtype).tiny
    tensors: State = {}
    for label, q in sorted(gaussians.items()):
        tensors[f"{label}/count"] = torch.tensor(q.count, dtype=torch.int32)
        tensors[f"{label}/mean"] = q.mean.to(dtype)
        if form == "diagonal":
            tensors[f"{label}/scale"] = q.tril.diagonal().to(dtype).clamp_min(least)
        elif form == "full" or "tril" not in tensors:
            tril = q.tril.to(dtype, copy=True)
            tril.diagonal().clamp_(min=least)
            tensors["tril" if form == "tied" else f"{label}/tril"] = pack_tril(tril)
    return tensors


def unpack(message: Mapping[str, Tensor]) -> dict[int, ClassGaussian]:
    """Return the Gaussians of a message by class, float32.

    Raises:
        InputError: a tensor missing, or values that make no Gaussian.
    """
    common = message.get("tril")
    shared = None if common is None else unpack_tril(common.float())
    gaussians = {}
    for label in sorted(int(name.split("/")[0]) for name in message if name.endswith("/count")):
        if f"{label}/mean" not in message:
            raise InputError(f"message without {label}/mean; allowed: a mean for each class")
        if f"{label}/scale" in message:
            tril = message[f"{label}/scale"].float().diag()
        elif f"{label}/tril" in message:
            tril = unpack_tril(message[f"{label}/tril"].float())
        elif shared is not None:
            tril = shared
        else:
            raise InputError(f"message without {label}/tril; allowed: {label}/tril, {label}/scale or tril")
        gaussians[label] = ClassGaussian(
            message[f"{label}/mean"].float(), tril, int(message[f"{label}/count"])
        )
    return gaussians
