"""Every source notebook keeps the rules of ``fedlib.book.lint``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlib.book import build, lint
from fedlib.book.layout import Layout
from fedlib.book.notebook import read

LAYOUT = Layout(Path(__file__).resolve().parents[2])
SOURCES = LAYOUT.sources()


def test_there_are_notebooks():
    assert SOURCES, f"no notebook found in {LAYOUT.notebooks}"


@pytest.mark.parametrize("page", SOURCES)
def test_source_notebook_is_sound(page):
    assert lint.problems(read(page, SOURCES[page])) == []


def test_every_notebook_is_in_the_table_of_contents_and_the_other_way_round():
    assert sorted(build.executed_pages(LAYOUT)) == sorted(SOURCES)


@pytest.mark.parametrize("page", SOURCES)
def test_page_names_are_lower_case_with_hyphens(page):
    assert set(page) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/")


@pytest.mark.parametrize("page", SOURCES)
def test_defaults_are_accepted_by_the_settings_they_meet(page):
    notebook = read(page, SOURCES[page])
    assert notebook.check(notebook.defaults) == notebook.defaults
