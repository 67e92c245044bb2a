"""Which fedlib source files an experiment or a notebook depends on, found without running them."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import fedlib

PACKAGE = Path(fedlib.__file__).resolve().parent
_DATA_SUFFIXES = (".yaml", ".csv")
_DOTTED = re.compile(r"fedlib(\.\w+)+")

REGISTRIES = ("fedlib.data.catalogue", "fedlib.experiments.settings")
"""Modules that only choose and check what runs: the choice is in a run's configuration, the data in its
checksums. A new line there recomputes nothing."""


def imported_modules(source: str | ast.Module, module: str = "") -> set[str]:
    """Return the dotted fedlib modules that ``source`` imports, at any depth of nesting.

    Args:
        source: Python source text, or its syntax tree.
        module: dotted name of the importing module, which relative imports start from.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return {name for name in found if name.split(".")[0] == "fedlib"}


def named_modules(tree: ast.Module) -> set[str]:
    """Return the dotted fedlib names that stand in ``tree`` as text: registries name modules so, to import
    only the one that is asked for."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and _DOTTED.fullmatch(text)}


def module_hashes(
    modules: Iterable[str], *, package_data: bool = True, registered: bool = True
) -> dict[str, str]:
    """Return the SHA-256 of every fedlib source file that ``modules`` can reach by imports.

    Imports inside functions count too.

    Args:
        modules: dotted names; names that are not fedlib modules (functions, classes) are ignored.
        package_data: also list the YAML and CSV files of every reached package, as ``fedlib/.../file.yaml``.
        registered: also follow ``named_modules``.
    """
    todo, seen, hashes = list(modules), set(), {}
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if "." in name:
            todo.append(name.rpartition(".")[0])  # importing a module runs its packages' __init__
        path = _source_file(name)
        if path is None:
            continue
        modified = path.stat().st_mtime_ns
        hashes[name] = _digest(path, modified)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported, named = _names(path, modified, package)
        todo.extend(imported)
        if registered:
            todo.extend(named)
        if package_data and path.name == "__init__.py" and path.parent != PACKAGE:
            for data in _package_data(path.parent):
                label = data.relative_to(PACKAGE.parent).as_posix()
                hashes[label] = _digest(data, data.stat().st_mtime_ns)
    return dict(sorted(hashes.items()))


def run_hashes(modules: Iterable[str]) -> dict[str, str]:
    """Return ``module_hashes`` of what decides a run's numbers: no package data (the configuration holds what
    was read from it), no ``REGISTRIES`` and nothing that they name (a run names its model's module itself)."""
    hashes = module_hashes(modules, package_data=False, registered=False)
    return {name: digest for name, digest in hashes.items() if name not in REGISTRIES}


def _source_file(name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "fedlib":
        return None
    base = PACKAGE.joinpath(*parts[1:])
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _package_data(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in _DATA_SUFFIXES
        and not (path.parent != folder and (path.parent / "__init__.py").exists())
    )


@lru_cache(maxsize=4096)
def _digest(path: Path, modified_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=4096)
def _names(path: Path, modified_ns: int, package: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a file imports and what it names as text; parsing takes most of the time of a key."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(imported_modules(tree, f"{package}.x")), frozenset(named_modules(tree))
