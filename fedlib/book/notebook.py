"""A source notebook as the runner sees it: its parameters, what it imports, and the values of one run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from fedlib.book import parameters
from fedlib.book.layout import Layout
from fedlib.book.parameters import Parameter
from fedlib.errors import InputError, choose
from fedlib.experiments import settings
from fedlib.runs import code

PARAMETERS_TAG = "parameters"


@dataclass(frozen=True)
class Notebook:
    """A source notebook.

    Attributes:
        page: part and name, for example ``mpt/training-time``.
        path: the file.
        node: its content.
    """

    page: str
    path: Path
    node: NotebookNode

    @property
    def code_cells(self) -> list[NotebookNode]:
        """The code cells in order."""
        return [cell for cell in self.node.cells if cell.cell_type == "code"]

    @property
    def tagged_cells(self) -> list[NotebookNode]:
        """The cells tagged ``parameters``; a sound notebook has exactly one."""
        return [cell for cell in self.node.cells if PARAMETERS_TAG in cell.metadata.get("tags", [])]

    @property
    def trees(self) -> list[ast.Module]:
        """The syntax trees of the code cells.

        Raises:
            InputError: if a cell is not plain Python; it names the cell.
        """
        found = []
        for number, cell in enumerate(self.node.cells, 1):
            if cell.cell_type == "code":
                try:
                    found.append(ast.parse(cell.source))
                except SyntaxError as error:
                    line = (error.text or "").strip()
                    raise InputError(
                        f"{self.page}, cell {number} is not plain Python: {error.msg} in {line!r}"
                    ) from None
        return found

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The declared parameters by name.

        Raises:
            InputError: if the notebook has not exactly one parameters cell as its first code cell, or a
                declaration is not well formed.
        """
        tagged = self.tagged_cells
        if len(tagged) != 1 or tagged[0] is not next(iter(self.code_cells), None):
            raise InputError(
                f"{self.page} has {len(tagged)} cells tagged 'parameters'; "
                "allowed: exactly one, its first code cell"
            )
        return parameters.parse(tagged[0].source)

    @property
    def unused_parameters(self) -> list[str]:
        """Declared parameters that no later cell reads; setting one would silently change nothing."""
        read = {
            node.id
            for tree in self.trees[1:]
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        return [name for name in self.parameters if name not in read]

    @property
    def modules(self) -> set[str]:
        """The dotted fedlib names that the notebook imports."""
        return set().union(*(code.imported_modules(tree) for tree in self.trees))

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``given`` with every value checked against its declaration.

        The names inside ``overrides`` are checked against the settings of the notebook's folder, together
        with the profile that they change.

        Raises:
            InputError: for an unknown or unread name, a value that the declaration does not allow, or a
                setting that the experiments do not know.
        """
        parameters.known(self.parameters, given, self.page)
        if unread := set(self.unused_parameters) & set(given):
            names = ", ".join(sorted(unread))
            raise InputError(f"{self.page} declares {names} but never reads it, so it cannot be set")
        checked = {name: self.parameters[name].check(value) for name, value in given.items()}
        values = self.defaults | checked
        if overrides := values.get("overrides"):
            folder = self.page.partition("/")[0]
            if settings.model_for(folder) is None:
                raise InputError(f"overrides is {overrides!r}; notebooks in {folder}/ have no settings")
            settings.load(folder, values["profile"], overrides)
            _check_names(overrides)
        return checked

    def read_assignments(self, assignments: list[str]) -> dict[str, Any]:
        """Return the checked values of ``name=value`` texts.

        Raises:
            InputError: as ``check``.
        """
        texts = parameters.split(assignments)
        parameters.known(self.parameters, texts, self.page)
        return self.check({name: self.parameters[name].read(text) for name, text in texts.items()})

    @property
    def defaults(self) -> dict[str, Any]:
        """The values in the source notebook."""
        return {name: parameter.default for name, parameter in self.parameters.items()}


def _check_names(overrides: Mapping[str, Any]) -> None:
    """Refuse data sets and models that do not exist, also where ``tasks`` and ``backbones`` name them."""
    from fedlib import data, models  # here, for models load torch

    chosen = [overrides, *overrides.get("tasks", {}).values(), *overrides.get("backbones", {}).values()]
    chosen += [{"model": name} for name in overrides.get("backbones", {})]
    for changes in chosen:
        if "dataset" in changes:
            data.card(changes["dataset"])
        if "model" in changes:
            models.module_of(changes["model"])


def read(page: str, path: Path) -> Notebook:
    """Read a source notebook.

    Raises:
        InputError: if the file is not a notebook.
    """
    try:
        node = nbformat.read(path, as_version=4)
        nbformat.validate(node)
    except (OSError, ValueError, AttributeError, TypeError, nbformat.ValidationError) as error:
        raise InputError(f"{path} is not a notebook that can be read: {str(error).splitlines()[0]}") from None
    return Notebook(page, path, node)


def find(name: str, layout: Layout | None = None) -> Notebook:
    """Return the notebook that a page name (``mpt/training-time``) or a file path names.

    Raises:
        InputError: if there is none; it names the closest page.
    """
    path = Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        path = path.resolve()
        return read(f"{path.parent.name}/{path.stem}", path)
    sources = (layout or Layout.of_checkout()).sources()
    page = choose("notebook", name.removeprefix("notebooks/").removesuffix(".ipynb"), sources)
    return read(page, sources[page])
