"""Names of data sets, and the one door to them.

A data set is one module and one line in ``MODULES``. The module has

* ``load(*, root, download, ...) -> ImageSet`` (its further keyword arguments are the set's options),
* ``find(*, root, ...) -> Found`` with the same options, which reads no image,
* ``CARD``, what is known about it before it is loaded, and
* ``domains(*, root, ...)`` with the same options, if it knows where each image comes from: see :func:`domains`.

A family such as ``medmnist:<flag>`` takes the part behind the colon as first argument of both functions, lists
what is allowed there in ``members()``, and has ``cards()`` instead of ``CARD``. Modules are named as text so that
only the one that is asked for is imported.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedlib import paths
from fedlib.data.files import Found
from fedlib.data.imageset import Card, ImageSet
from fedlib.errors import InputError, choose

MODULES = {
    "digits": "fedlib.data.digits",
    "fashion-mnist": "fedlib.data.fashion_mnist",
    "cifar10": "fedlib.data.cifar10",
    "medmnist": "fedlib.data.medmnist",
    "cells": "fedlib.data.cells",
    "rsna": "fedlib.data.rsna",
    "diabetic": "fedlib.data.diabetic",
    "isic": "fedlib.data.isic",
    "roadworld": "fedlib.data.roadworld",
    "nuimages": "fedlib.data.nuimages",
    "car1000-coarse": "fedlib.data.car1000_coarse",
    "car1000-fine": "fedlib.data.car1000_fine",
}


#: Driving scenes with several sensors: no images with labels, so :func:`driving` opens them, not :func:`load`.
DRIVING = {
    "nuscenes": "fedlib.data.nuscenes",
    "roadworld-drives": "fedlib.data.roadworld.drives",
}


def available() -> list[str]:
    """Return every name that :func:`load` or :func:`driving` takes.

    >>> available()[:4]
    ['digits', 'fashion-mnist', 'cifar10', 'medmnist:pathmnist']
    """
    names: list[str] = []
    for family, module in {**MODULES, **DRIVING}.items():
        members = getattr(importlib.import_module(module), "members", None)
        names += [f"{family}:{member}" for member in members()] if members else [family]
    return names


def load(name: str, *, root: str | Path | None = None, download: bool = False, **options: Any) -> ImageSet:
    """Load a data set by name.

    Args:
        name: one of :func:`available` except ``DRIVING``.
        root: folder with the files; None takes ``fedlib.paths.data_root()`` (environment ``FEDLIB_DATA``).
        download: let the publishing package fetch what is missing.
        options: options of the data set, for example ``size=64, as_rgb=True`` for ``medmnist:<flag>``.

    Raises:
        InputError: unknown name or option; files missing (the message says what to do), damaged, or with
            contents that are not allowed (the message names the file).
    """
    if name in DRIVING:
        raise InputError(f"{name} has no images with labels; open it by fedlib.data.driving")
    module, member = _resolve(name)
    _check_options(name, module, options)
    image_set: ImageSet = module.load(*member, root=_root(root), download=download, **options)
    return image_set


def domains(name: str, *, root: str | Path | None = None, **options: Any) -> dict[str, np.ndarray] | None:
    """Return where each image of a set comes from, int64 (n,) by split; None for a set that does not know.

    Args:
        name: as for :func:`load`.
        root: as for :func:`load`.
        options: options of the data set, the same as for :func:`load`.

    Raises:
        InputError: unknown name or option.
    """
    module, member = _resolve(name)
    _check_options(name, module, options)
    if not hasattr(module, "domains"):
        return None
    found: dict[str, np.ndarray] = module.domains(*member, root=_root(root), **options)
    return found


def driving(name: str, *, root: str | Path | None = None, **options: Any) -> Any:
    """Open driving scenes by name.

    Args:
        name: ``nuscenes`` (a user's copy) or ``roadworld-drives`` (generated, once).
        root: folder with the copy; None takes ``fedlib.paths.data_root()`` (environment ``FEDLIB_DATA``).
        options: options of the set, for example ``preset="tiny"`` for ``roadworld-drives``.

    Returns:
        A :class:`fedlib.data.nuscenes.DrivingSet`.

    Raises:
        InputError: unknown name or option, no copy, or a table missing.
    """
    choose("driving set", name, DRIVING)
    module, _ = _resolve(name)
    _check_options(name, module, options)
    return module.load(root=_root(root), download=False, **options)


def find(name: str, *, root: str | Path | None = None, **options: Any) -> Found:
    """Say whether a data set is on this machine, and what to do if not; reads no image.

    Raises:
        InputError: unknown name or option.
    """
    module, member = _resolve(name)
    _check_options(name, module, options)
    found: Found = module.find(*member, root=_root(root), **options)
    return found


def cards() -> dict[str, tuple[Card, ...]]:
    """Return what is known about every data set before it is loaded, by family (``medmnist``) or name."""
    modules = {family: importlib.import_module(module) for family, module in {**MODULES, **DRIVING}.items()}
    return {
        family: tuple(module.cards()) if hasattr(module, "cards") else (module.CARD,)
        for family, module in modules.items()
    }


def card(name: str) -> Card:
    """Return what is known about one data set before it is loaded.

    Raises:
        InputError: unknown name.
    """
    known = {card.name: card for family in cards().values() for card in family}
    return known[choose("data set", name, known)]


def _resolve(name: str) -> tuple[ModuleType, tuple[str, ...]]:
    if not isinstance(name, str):
        raise InputError(f"data set is {name!r}; allowed: {', '.join(available())}")
    family, colon, member = name.partition(":")
    known = {**MODULES, **DRIVING}
    if family not in known:
        choose("data set", name, available())
    module = importlib.import_module(known[family])
    if bool(colon) != hasattr(module, "members"):
        choose("data set", name, available())
    return module, (member,) if colon else ()


def _check_options(name: str, module: ModuleType, options: dict[str, Any]) -> None:
    keywords = inspect.signature(module.load).parameters.values()
    allowed = [p.name for p in keywords if p.kind is p.KEYWORD_ONLY and p.name not in ("root", "download")]
    for option in options:
        if not allowed:
            raise InputError(f"{name} has no option {option!r}; allowed: none")
        choose(f"option of {name}", option, allowed)


def _root(root: str | Path | None) -> Path:
    return paths.data_root() if root is None else Path(root).expanduser()
