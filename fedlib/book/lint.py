"""The rules that every source notebook keeps; the tests apply them to all notebooks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fedlib.book.notebook import Notebook
from fedlib.errors import InputError

MAX_LINES = 25
DEFINITIONS_ALLOWED_IN = "foundations/"  # chapters that teach an algorithm by writing it out


def problems(notebook: Notebook) -> list[str]:
    """Return every broken rule as one line; an empty list means a sound notebook."""
    found = [*_stored_results(notebook)]
    try:
        trees = notebook.trees
    except InputError as error:
        return [*found, str(error)]
    if not trees:
        return [*found, "it has no code cell"]
    found += _parameters(notebook)
    found += _cells(notebook, trees)
    return found


def _stored_results(notebook: Notebook) -> Iterator[str]:
    kernel = notebook.node.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"its kernelspec is {kernel!r}; allowed: 'python3'"
    if "papermill" in notebook.node.metadata or "fedlib" in notebook.node.metadata:
        yield "it is an executed copy, not a source"
    for number, cell in enumerate(notebook.node.cells, 1):
        if cell.cell_type == "code" and cell.outputs:
            yield f"cell {number} has outputs"
        if cell.cell_type == "code" and cell.execution_count is not None:
            yield f"cell {number} has an execution count"


def _parameters(notebook: Notebook) -> Iterator[str]:
    try:
        unused = notebook.unused_parameters
    except InputError as error:
        yield str(error)
        return
    for name in unused:
        yield f"parameter {name} is declared but no later cell reads it"


def _cells(notebook: Notebook, trees: list[ast.Module]) -> Iterator[str]:
    imports = (ast.Import, ast.ImportFrom)
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    importing = [tree for tree in trees if any(isinstance(node, imports) for node in ast.walk(tree))]
    if len(importing) != 1:
        yield f"{len(importing)} cells import; allowed: exactly one"
    for number, (cell, tree) in enumerate(zip(notebook.code_cells, trees, strict=True), 1):
        lines = len(cell.source.splitlines())
        if lines > MAX_LINES:
            yield f"code cell {number} has {lines} lines; allowed: at most {MAX_LINES}"
        names = [node.name for node in ast.walk(tree) if isinstance(node, definitions)]
        if names and not notebook.page.startswith(DEFINITIONS_ALLOWED_IN):
            yield f"code cell {number} defines {', '.join(names)}; allowed only in {DEFINITIONS_ALLOWED_IN}"
    last = trees[-1].body[-1] if trees[-1].body else None
    if last is None or ast.unparse(last) != "report.finish()":
        yield "the last statement of the last code cell is not report.finish()"
