"""Throw-away notebooks for the tests of the runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fedlib.book.layout import Layout
from fedlib.book.notebook import Notebook, read

# What report.finish() writes, without the import of the report package.
FINISH = 'display({"application/vnd.fedlib+json": {"kind": "finished"}, "text/plain": ""}, raw=True)'
PARAMETERS = """\
size = 3  # int, at least 1: number of things
colour = "red"  # str, one of red | green: colour of the things
"""

WriteNotebook = Callable[..., Notebook]


@pytest.fixture(scope="session")
def write_notebook() -> WriteNotebook:
    """Writes a source notebook of the given code cells and returns it.

    A cell that only uses the parameters comes before them, the marker of a finished notebook after them.
    """

    def write(
        layout: Layout,
        page: str,
        *code: str,
        parameters: str = PARAMETERS,
        text: str = "# Title",
        finish: bool = True,
    ) -> Notebook:
        names = [line.split(" = ")[0] for line in parameters.splitlines()]
        sources = [*code, FINISH] if finish else code
        cells = [
            new_markdown_cell(text, id="title"),
            new_code_cell(parameters.strip(), id="parameters", metadata={"tags": ["parameters"]}),
            new_code_cell("\n".join(names), id="names"),
            *(new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)),
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = layout.notebooks / f"{page}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
        return read(page, path)

    return write


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty book."""
    (tmp_path / "requirements.lock").write_text("numpy==1.26.4\n")
    return Layout(tmp_path)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when any process is started."""

    def refuse(*args: object, **keywords: object) -> None:
        raise AssertionError(f"a process was started: {args}")

    monkeypatch.setattr("subprocess.Popen", refuse)
