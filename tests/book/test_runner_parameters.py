"""Parameters of notebooks are typed, and bad ones are refused before a kernel starts."""

from __future__ import annotations

import nbformat
import pytest
from typer.testing import CliRunner

from fedlib.book import execute, parameters
from fedlib.book.notebook import find, read
from fedlib.cli import app
from fedlib.errors import InputError

CELL = """\
profile = "quick"  # str, one of smoke | quick: size of the run
seeds = None  # int | None, at least 1: repetitions
lr = 0.1  # float, above 0: step size

# a remark between the lines
share = 1.0  # float, in (0, 1]: share of clients
names = ["a"]  # list[str], one of a | b: which ones
alphas = [0.1, 10.0]  # list[float], above 0: concentrations
plot = True  # bool: whether to draw
data = "medmnist:bloodmnist"  # str, one of digits | medmnist:bloodmnist: data set
overrides = {}  # dict: other settings
"""


@pytest.fixture(scope="module")
def declared() -> dict[str, parameters.Parameter]:
    return parameters.parse(CELL)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("profile", "smoke", "smoke"),
        ("seeds", "5", 5),
        ("seeds", "null", None),
        ("seeds", "None", None),
        ("lr", "1", 1.0),
        ("lr", "1e-3", 0.001),
        ("names", "[b, a]", ["b", "a"]),
        ("alphas", "[1, 1e-2]", [1.0, 0.01]),
        ("plot", "false", False),
        ("data", "digits", "digits"),
        ("overrides", "{rounds: 20, lr: 1e-3}", {"rounds": 20, "lr": 0.001}),
    ],
)
def test_text_becomes_the_declared_type(declared, name, text, value):
    read = declared[name].read(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("profile", "smokey", "did you mean 'smoke'"),
        ("seeds", "0", "int | None, at least 1"),
        ("seeds", "2.0", "int"),
        ("seeds", "true", "int"),
        ("seeds", "five", "int"),
        ("lr", "0", "float, above 0"),
        ("lr", ".nan", "float, above 0"),
        ("lr", "null", "float"),
        ("share", "1.5", "in (0, 1]"),
        ("share", "0", "in (0, 1]"),
        ("names", "a", "list[str]"),
        ("names", "[a, c]", "one of a | b"),
        ("alphas", "[1, x]", "list[float]"),
        ("plot", "yes", "bool"),
        ("plot", "1", "bool"),
        ("overrides", "[1]", "dict"),
        ("overrides", "{a: [", "not YAML"),
    ],
)
def test_ill_typed_text_is_refused_naming_value_and_what_is_allowed(declared, name, text, allowed):
    with pytest.raises(InputError) as caught:
        declared[name].read(text)
    assert name in str(caught.value)
    assert allowed in str(caught.value)


def test_a_declared_string_stays_a_string_when_yaml_sees_a_number():
    (parameter,) = parameters.parse("key = 'x'  # str: any text").values()
    assert [parameter.read(text) for text in ("5", "true", "null", "'5'")] == ["5", "true", "null", "5"]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "x = 1  # a number",
        "x = 1  # int, sort of large: a number",
        "x = 1  # int:",
        "x: int = 1  # int: a number",
        "x = y = 1  # int: a number",
        "x = 1 + 1  # int: a number",
        "x = abs(1)  # int: a number",
        "x = 'a'  # int: a number",
        "x = 0  # int, at least 1: a number",
        "x = 1  # int: a number\nx = 2  # int: a number",
        "x = [\n    1\n]  # list[int]: numbers",
        "import os",
        "x = (",
    ],
)
def test_a_parameters_cell_of_anything_but_commented_literals_is_refused(source):
    with pytest.raises(InputError):
        parameters.parse(source)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "sise=4"], "did you mean 'size'"),
        (["-p", "size=many"], "allowed: int, at least 1"),
        (["-p", "size"], "allowed: name=value"),
        (["-p", "size=1", "-p", "size=2"], "given twice"),
        (["--profile", "quick"], "'profile'; allowed: size, colour"),
    ],
)
def test_command_line_refuses_bad_parameters_in_one_line_before_a_kernel_starts(
    layout, write_notebook, arguments, message
):
    notebook = write_notebook(layout, "foundations/page", "1")
    result = CliRunner().invoke(app, ["run", str(notebook.path), *arguments])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert message in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.usefixtures("no_process")
def test_parameter_that_no_cell_reads_cannot_be_set(layout, write_notebook):
    notebook = write_notebook(layout, "foundations/page", "1")
    del notebook.node.cells[2]  # the cell that reads them
    with pytest.raises(InputError, match="never reads it"):
        notebook.check({"size": 4})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"rounds": "many"}, "rounds"),
        ({"rounds": 0}, "rounds"),
        ({"dataset": "nope"}, "data set is 'nope'"),
        ({"model": "cnn4"}, "model is 'cnn4'.*did you mean 'cnn3'"),
        ({"tasks": {"objects": {"dataset": "nope"}}}, "data set is 'nope'"),
        ({"backbones": {"nope": {}}}, "model is 'nope'"),
    ],
)
def test_overrides_are_checked_against_the_settings_of_the_folder(layout, write_notebook, overrides, message):
    cell = 'profile = "quick"  # str, one of smoke | quick: size\noverrides = {}  # dict: settings'
    notebook = write_notebook(layout, "mpt/page", "1", parameters=cell)
    assert notebook.check({"overrides": {"lr": 0.1}}) == {"overrides": {"lr": 0.1}}
    with pytest.raises(InputError, match=message):
        notebook.check({"overrides": overrides})


def test_overrides_are_refused_where_a_folder_has_no_settings(layout, write_notebook):
    notebook = write_notebook(layout, "nowhere/page", "1", parameters="overrides = {}  # dict: settings")
    with pytest.raises(InputError, match="have no settings"):
        notebook.check({"overrides": {"rounds": 3}})


def test_a_profile_for_all_reaches_only_notebooks_that_declare_it(layout, write_notebook):
    cell = 'profile = "quick"  # str, one of smoke | quick: size'
    notebooks = [
        write_notebook(layout, "foundations/plain", "1"),
        write_notebook(layout, "foundations/sized", "1", parameters=cell),
    ]
    jobs = execute.plan(notebooks, layout, {"profile": "smoke"})
    assert [job.given for job in jobs] == [{}, {"profile": "smoke"}]
    assert [job.profile for job in jobs] == [None, "smoke"]


def test_notebook_is_found_by_page_or_by_path_and_a_wrong_name_gets_the_closest(layout, write_notebook):
    notebook = write_notebook(layout, "mpt/training-time", "1")
    assert find("mpt/training-time", layout).path == notebook.path
    assert find(str(notebook.path), layout).page == "mpt/training-time"
    with pytest.raises(InputError, match="did you mean 'mpt/training-time'"):
        find("mpt/training-tim", layout)


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    path = tmp_path / "broken.ipynb"
    path.write_text('{"cells": [')
    with pytest.raises(InputError, match=r"broken\.ipynb is not a notebook"):
        read("x/broken", path)


@pytest.mark.parametrize("tagged", [[], [1, 2], [2]])
def test_parameters_cell_is_exactly_one_and_the_first_code_cell(layout, write_notebook, tagged):
    notebook = write_notebook(layout, "foundations/page", "1")
    for index, cell in enumerate(notebook.node.cells):
        cell.metadata = nbformat.NotebookNode({"tags": ["parameters"]} if index in tagged else {})
    with pytest.raises(InputError, match="exactly one, its first code cell"):
        _ = notebook.parameters
