"""The local Sphinx extension: what it must refuse, hide and mend, shown on the smallest project that can break."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
CONF = """
import sys
sys.path.insert(0, {extension!r})
extensions = ["myst_nb", "companion"]
nb_execution_mode = "off"
html_theme = "sphinx_book_theme"
"""

Build = Callable[..., tuple[int, str, Path]]


@pytest.fixture(scope="session")
def companion(repo: Path) -> ModuleType:
    sys.path.insert(0, str(repo / "book" / "_ext"))
    try:
        import companion
    finally:
        sys.path.pop(0)
    return companion


@pytest.fixture
def build_page(repo: Path, tmp_path: Path) -> Build:
    """Return a function that builds one page with warnings as errors: exit status, messages, site."""

    def build(text: str, name: str = "index.md") -> tuple[int, str, Path]:
        source, site = tmp_path / "source", tmp_path / "site"
        source.mkdir()
        (source / "conf.py").write_text(CONF.format(extension=str(repo / "book" / "_ext")))
        (source / "pixel.png").write_bytes(base64.b64decode(PIXEL))
        (source / name).write_text(text)
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-b",
            "html",
            "-W",
            "-n",
            "--keep-going",
            "-q",
            str(source),
            str(site),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stderr, site

    return build


@pytest.mark.parametrize(
    "image",
    ["![](pixel.png)", "![pixel.png](pixel.png)", '```{raw} html\n<img src="pixel.png">\n```'],
    ids=["no alt", "file name as alt", "raw HTML"],
)
def test_an_image_without_alternative_text_fails_the_build(build_page: Build, image: str) -> None:
    status, messages, _ = build_page(f"# Title\n\n{image}\n")
    assert status != 0
    assert "image without alternative text" in messages


def test_an_image_with_alternative_text_passes(build_page: Build) -> None:
    status, messages, _ = build_page("# Title\n\n![A single grey pixel.](pixel.png)\n")
    assert status == 0, messages


def test_an_unknown_reference_fails_the_build(build_page: Build) -> None:
    status, messages, _ = build_page("# Title\n\nSee {doc}`nowhere` and {ref}`nothing`.\n")
    assert status != 0
    assert "nowhere" in messages


def notebook(mime: str, metadata: dict[str, Any] | None = None) -> str:
    """Return a notebook with one output of a type that a page cannot show."""
    output = {
        "output_type": "display_data",
        "metadata": {},
        "data": {mime: {"kind": "finished"}, "text/plain": ""},
    }
    code = {
        "cell_type": "code",
        "id": "code",
        "metadata": metadata or {},
        "source": "report.finish()",
        "execution_count": 1,
        "outputs": [output],
    }
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# Title"}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [title, code]})


def test_results_for_machines_are_not_shown(build_page: Build) -> None:
    status, messages, site = build_page(notebook("application/vnd.fedlib+json"), "index.ipynb")
    assert status == 0, messages
    assert 'class="cell_output' not in (site / "index.html").read_text("utf-8")


def test_an_output_that_no_page_can_show_fails_the_build(build_page: Build) -> None:
    status, messages, _ = build_page(notebook("application/vnd.plotly.v1+json"), "index.ipynb")
    assert status != 0
    assert "unknown output mime type" in messages


def test_a_cell_that_declares_a_figure_and_shows_none_fails_the_build(build_page: Build) -> None:
    declared = {"mystnb": {"image": {"alt": "A line that rises."}}}
    status, messages, _ = build_page(notebook("application/vnd.fedlib+json", declared), "index.ipynb")
    assert status != 0
    assert "declares an image" in messages


def test_one_local_mathjax_file_is_put_into_the_site(build_page: Build) -> None:
    status, messages, site = build_page("# Title\n")
    assert status == 0, messages
    files = [path for path in (site / "_static" / "mathjax").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["tex-svg.js"]


def test_repository_links_lead_to_sources(companion: ModuleType) -> None:
    edit = "https://github.com/o/r/edit/main/book"
    buttons = [
        {"type": "link", "url": f"{edit}/_executed/mpt/training-time.ipynb"},
        {"type": "group", "buttons": [{"type": "link", "url": f"{edit}/_generated/status.md"}]},
        {"type": "link", "url": f"{edit}/how-to-run.md"},
        {"type": "javascript", "javascript": "window.print()"},
    ]
    mended = companion.mend_header_buttons(buttons)
    assert mended == [
        {"type": "link", "url": "https://github.com/o/r/edit/main/notebooks/mpt/training-time.ipynb"},
        {"type": "link", "url": f"{edit}/how-to-run.md"},
        {"type": "javascript", "javascript": "window.print()"},
    ]
