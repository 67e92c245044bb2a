"""An executed copy is used exactly as long as nothing that it was made from changed; else the reason is named."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_output
from typer.testing import CliRunner

from fedlib import paths
from fedlib.book import execute, key
from fedlib.book.notebook import read
from fedlib.cli import app
from fedlib.runs import code

pytestmark = pytest.mark.usefixtures("no_process")


@pytest.fixture
def notebook(layout, write_notebook):
    return write_notebook(layout, "x/page", "import fedlib.errors\nfrom fedlib import paths")


@pytest.fixture
def executed(layout, notebook):
    """An executed copy as the runner leaves it, made without a kernel."""
    inputs = key.inputs(notebook, {}, layout.lock)
    node = nbformat.reads(nbformat.writes(notebook.node), as_version=4)
    node.cells[-1].outputs = [new_output("display_data", {key.MIME: {"kind": "finished"}})]
    node.metadata[key.METADATA] = key.Manifest(
        page=notebook.page,
        profile=None,
        parameters=inputs.parameters,
        given={},
        seconds=1.0,
        peak_memory_mib=100,
        versions={},
        inputs=inputs,
        key=inputs.key,
        content=key.content(node),
    ).model_dump()
    path = layout.executed_copy(notebook.page)
    path.parent.mkdir(parents=True)
    nbformat.write(node, path)
    return path


def _reason(layout, notebook, **given) -> str | None:
    (job,) = execute.plan([read(notebook.page, notebook.path)], layout, given)
    return job.reason


@pytest.mark.usefixtures("executed")
def test_nothing_changed_means_no_reason(layout, notebook):
    assert _reason(layout, notebook) is None
    assert _reason(layout, notebook, size=3) is None  # the default, given by name


def test_never_executed(layout, notebook):
    assert _reason(layout, notebook) == "never executed"


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("index", [0, 3], ids=["text", "code"])
def test_changed_text_or_code_of_the_notebook_is_named(layout, notebook, index):
    notebook.node.cells[index].source += " more" if index == 0 else "\nmore = 1"
    nbformat.write(notebook.node, notebook.path)
    assert _reason(layout, notebook) == "the notebook's text changed"


@pytest.mark.usefixtures("executed")
def test_changed_parameters_are_named_with_both_values(layout, notebook):
    reason = _reason(layout, notebook, size=4, colour="green")
    assert reason == "parameter colour: 'red' -> 'green'; parameter size: 3 -> 4"


def test_the_order_of_a_parameter_s_members_is_no_change_and_their_type_is_one():
    def made(options):
        return key.Inputs(notebook="", parameters={"overrides": options}, modules={}, lock="")

    assert key.changes(made({"a": 1, "b": 2}), made({"b": 2, "a": 1})) == []
    assert key.changes(made({"a": 1}), made({"a": True})) == ["parameter overrides: {'a': 1} -> {'a': True}"]


@pytest.mark.usefixtures("executed")
def test_changed_library_module_is_named_and_an_unrelated_one_does_not_matter(layout, notebook, monkeypatch):
    real = code.module_hashes
    monkeypatch.setattr(code, "module_hashes", lambda modules: real(modules) | {"fedlib.errors": "changed"})
    assert _reason(layout, notebook) == "library changed: fedlib.errors"
    assert {"fedlib.errors", "fedlib.paths"} <= set(real(notebook.modules))
    assert "fedlib.data" not in real(notebook.modules)


def test_notebook_depends_on_the_models_and_data_that_registries_name_and_a_run_does_not(
    layout, write_notebook
):
    notebook = write_notebook(
        layout, "x/page", "from fedlib import data, models\nfrom fedlib.runs import Store"
    )
    registered = {"fedlib.models.cnn3", "fedlib.data.digits"}
    assert registered <= set(key.inputs(notebook, {}, layout.lock).modules)
    assert not registered & set(code.run_hashes(notebook.modules))


@pytest.mark.usefixtures("executed")
def test_changed_lock_is_named(layout, notebook):
    layout.lock.write_text("numpy==2.0.0\n")
    assert _reason(layout, notebook) == "requirements.lock changed"


def test_damaged_copies_are_noticed_and_made_again(layout, notebook, executed):
    whole = executed.read_text()
    for damaged, reason in [
        (whole[: len(whole) // 2], "not a notebook"),
        ("", "not a notebook"),
        (whole.replace("Title", "Titel"), "checksum"),
        (whole.replace('"size": 3', '"size": 4', 1), "checksum"),
        (whole.replace('"peak_memory_mib"', '"peak"'), "manifest"),
    ]:
        assert damaged != whole
        executed.write_text(damaged)
        assert reason in _reason(layout, notebook)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (new_output("error", ename="ValueError", evalue="no", traceback=[]), "error output"),
        (new_output("stream", text="bye"), "lacks the marker"),
    ],
)
def test_copy_with_an_error_or_without_the_marker_is_made_again(layout, notebook, executed, output, reason):
    node = nbformat.read(executed, as_version=4)
    cell = node.cells[-1]
    cell.outputs = [*cell.outputs, output] if output.output_type == "error" else [output]
    node.metadata[key.METADATA]["content"] = key.content(node)
    nbformat.write(node, executed)
    assert reason in _reason(layout, notebook)


@pytest.mark.usefixtures("executed")
def test_forced_run_says_so(layout, notebook):
    (job,) = execute.plan([notebook], layout, force=True)
    assert job.reason == "forced"


@pytest.mark.usefixtures("executed")
def test_dry_run_says_what_would_run_and_why(layout, write_notebook, monkeypatch):
    write_notebook(layout, "x/new", "1")
    monkeypatch.setattr(paths, "repo_root", lambda: layout.root)
    result = CliRunner().invoke(app, ["book", "--dry-run"])
    assert result.exit_code == 0
    assert result.output.splitlines() == ["x/new: would run (never executed)", "x/page: up to date"]
    only = CliRunner().invoke(app, ["book", "--dry-run", "--only", "*/page"])
    assert only.output.splitlines() == ["x/page: up to date"]


BROKEN = {
    "x/magic": ("%matplotlib inline", "x/magic, cell 4 is not plain Python"),
    "x/syntax": ("a = = 1", "x/syntax, cell 4 is not plain Python: invalid syntax in 'a = = 1'"),
    "x/json": (None, "json.ipynb is not a notebook that can be read"),
}


@pytest.fixture
def broken(layout, write_notebook, monkeypatch):
    for page, (cell, _) in BROKEN.items():
        write_notebook(layout, page, cell or "1")
    (layout.notebooks / "x/json.ipynb").write_text("not JSON")
    monkeypatch.setattr(paths, "repo_root", lambda: layout.root)


@pytest.mark.usefixtures("notebook", "broken")
def test_broken_notebooks_fail_by_name_and_the_others_run(monkeypatch):
    asked = []

    def run(jobs, listener, **options):
        asked.extend(job.page for job in jobs)
        return [execute.Outcome(page, 1.0, None) for page in asked]

    monkeypatch.setattr(execute, "run", run)
    result = CliRunner().invoke(app, ["book"])
    assert result.exit_code == 1
    assert asked == ["x/page"]
    assert "book not built: 3 of 4 notebooks failed" in result.output
    dry = CliRunner().invoke(app, ["book", "--dry-run"]).output
    assert "x/page: would run (never executed)" in dry
    for page, (_, reason) in BROKEN.items():
        for output in (result.output, dry):
            (line,) = [line for line in output.splitlines() if line.startswith(page)]
            assert reason in line


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("page", BROKEN)
def test_run_of_a_broken_notebook_is_one_line_and_status_2(page):
    result = CliRunner().invoke(app, ["run", page])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    assert BROKEN[page][1] in line


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"FEDLIB_WORKERS": "abc"}, [], "'abc'; allowed: an integer >= 1"),
        ({}, ["-o", "."], "which is a folder; give a file"),
        ({}, ["-o", "{file}/out.ipynb"], "nothing can be written to {file}"),
        ({"FEDLIB_HOME": "{file}/home"}, ["-o", "{file}.ipynb"], "nothing can be written to {file}/home"),
    ],
    ids=["workers", "folder", "target", "home"],
)
def test_what_would_fail_after_the_kernels_worked_is_refused_before(
    layout, monkeypatch, tmp_path, environment, arguments, message
):
    (tmp_path / "file").write_text("")
    name = {"file": str(tmp_path / "file")}
    monkeypatch.setattr(paths, "repo_root", lambda: layout.root)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value.format_map(name))
    result = CliRunner().invoke(app, ["run", "x/page", *(word.format_map(name) for word in arguments)])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert message.format_map(name) in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only", "y/*"], "matches no page"), (["--profile", "fast"], "smoke, quick, overnight, paper")],
)
@pytest.mark.usefixtures("executed")
def test_book_refuses_unknown_pages_and_profiles(layout, monkeypatch, arguments, message):
    monkeypatch.setattr(paths, "repo_root", lambda: layout.root)
    result = CliRunner().invoke(app, ["book", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_copy_of_a_notebook_that_is_gone_is_removed(layout, notebook, executed):
    orphan = layout.executed_copy("x/old-name")
    orphan.write_text("{}")
    assert execute.remove_orphans(layout) == ["x/old-name"]
    assert executed.exists()
    assert not orphan.exists()
