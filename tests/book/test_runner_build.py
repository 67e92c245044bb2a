"""The book is built only from finished notebooks, only when something changed, and its warnings are errors."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from typer.testing import CliRunner

from fedlib import paths
from fedlib.book import build, execute, key, pages
from fedlib.cli import app

TOC = """\
format: jb-book
root: index
parts:
  - caption: Part
    chapters:
      - file: _executed/x/page
        sections:
          - file: _executed/x/inner
"""


@pytest.fixture
def book(layout, monkeypatch):
    """A book with two executed pages; it is not really built."""
    layout.book.mkdir()
    (layout.book / "_toc.yml").write_text(TOC)
    (layout.book / "_config.yml").write_text("title: Test\nexecute:\n  execute_notebooks: 'off'\n")
    (layout.book / "index.md").write_text("# Index\n")
    for page in ("x/page", "x/inner"):
        _execute(layout, page, new_output("display_data", {key.MIME: {"kind": "finished"}}))
    monkeypatch.setattr(pages, "generate", lambda book_dir, executed_dir, generated_dir: None)
    return layout


@pytest.fixture
def builds(book, monkeypatch) -> list[str]:
    """Counts builds instead of making them."""
    made: list[str] = []

    def fake(layout) -> None:
        made.append("built")
        layout.html.mkdir(parents=True)
        (layout.html / "index.html").write_text("book")

    monkeypatch.setattr(build, "_jupyter_book", fake)
    return made


def _execute(layout, page, *outputs) -> None:
    node = new_notebook(cells=[new_code_cell("1", id="only", outputs=list(outputs))])
    inputs = key.Inputs(notebook="", parameters={}, modules={}, lock="")
    node.metadata[key.METADATA] = key.Manifest(
        page=page,
        profile=None,
        parameters={},
        given={},
        seconds=1.0,
        peak_memory_mib=1,
        versions={},
        inputs=inputs,
        key=inputs.key,
        content=key.content(node),
    ).model_dump()
    path = layout.executed_copy(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(node, path)


def test_pages_of_the_table_of_contents_are_found_at_any_depth(book):
    assert build.executed_pages(book) == ["x/page", "x/inner"]


def test_nothing_changed_builds_nothing(book, builds):
    assert build.build(book).fresh
    assert not build.build(book).fresh
    assert builds == ["built"]
    assert build.build(book, force=True).fresh


@pytest.mark.parametrize(
    "name", ["book/index.md", "book/new/page.md", "book/_executed/x/inner.ipynb", "requirements.lock"]
)
def test_any_change_of_what_the_book_depends_on_builds_it_again(book, builds, name):
    build.build(book)
    if name.endswith(".ipynb"):
        _execute(
            book,
            "x/inner",
            new_output("stream", text="new"),
            new_output("display_data", {key.MIME: {"kind": "finished"}}),
        )
    else:
        path = book.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("changed\n")
    assert build.build(book).fresh


def test_failed_build_is_not_taken_for_a_finished_one(book, builds, monkeypatch):
    build.build(book)
    (book.book / "index.md").write_text("# Changed\n")

    def fail(layout) -> None:
        layout.html.mkdir(parents=True)
        (layout.html / "index.html").write_text("half a book")
        raise build.BuildError("warning")

    with monkeypatch.context() as patch:
        patch.setattr(build, "_jupyter_book", fail)
        with pytest.raises(build.BuildError):
            build.build(book)
    assert build.build(book).fresh


@pytest.mark.usefixtures("builds")
def test_page_with_an_error_output_or_without_results_is_never_built(book):
    _execute(book, "x/page", new_output("error", ename="ValueError", evalue="no", traceback=[]))
    book.executed_copy("x/inner").unlink()
    with pytest.raises(build.BuildError) as caught:
        build.build(book)
    assert "x/page: the executed copy holds an error output" in str(caught.value)
    assert "x/inner: never executed" in str(caught.value)


@pytest.mark.slow
def test_warning_of_the_build_is_an_error_that_is_shown(book):
    (book.book / "index.md").write_text("# Index\n\n[nowhere](no-such-page.md)\n")
    with pytest.raises(build.BuildError, match="no-such-page"):
        build.build(book)


def test_build_date_is_the_last_commit_and_fixed_without_git(book, repo):
    assert build.source_date(book) == build.source_date(book) == "315532800"
    assert int(build.source_date(type(book)(repo))) >= 315532800


@pytest.mark.parametrize("failing", [True, False])
def test_command_names_failures_and_exits_non_zero_or_says_where_the_book_is(
    book, builds, write_notebook, monkeypatch, failing
):
    for page in ("x/page", "x/inner"):
        write_notebook(book, page, "1")
    failure = execute.Failure(7, "ValueError: no good", None)

    def run(jobs, listener, *, at_once, time_limit):
        outcomes = []
        for job in jobs:
            failed = failure if failing and job.page == "x/page" else None
            outcomes.append(execute.Outcome(job.page, 1.0, failed))
            listener.started(job)
            listener.finished(outcomes[-1])
        return outcomes

    monkeypatch.setattr(execute, "run", run)
    monkeypatch.setattr(paths, "repo_root", lambda: book.root)
    result = CliRunner().invoke(app, ["book"])
    lines = result.output.splitlines()
    assert "x/inner: done in 1 s" in lines
    if failing:
        assert result.exit_code == 1
        assert lines[-1] == "x/page: FAILED after 1 s in cell 7: ValueError: no good"
        assert builds == []
    else:
        assert result.exit_code == 0
        assert lines[-1] == f"open {(book.html / 'index.html').as_uri()}"
        assert builds == ["built"]
