"""Each rule for source notebooks is able to fail."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_output

from fedlib.book import lint
from fedlib.book.notebook import read
from fedlib.errors import InputError


@pytest.fixture
def sound(layout, write_notebook):
    return write_notebook(layout, "mpt/page", "from fedlib import report", "report.finish()", finish=False)


def test_sound_notebook_has_no_problem(sound):
    assert lint.problems(sound) == []


def _set(index, **changes):
    def apply(node):
        node.cells[index].update(changes)

    return apply


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_set(2, outputs=[new_output("stream", text="x")]), "cell 3 has outputs"),
        (_set(2, execution_count=1), "cell 3 has an execution count"),
        (lambda node: node.metadata.kernelspec.update(name="my-env"), "kernelspec is 'my-env'"),
        (lambda node: node.metadata.pop("kernelspec"), "kernelspec is None"),
        (lambda node: node.metadata.update(papermill={}), "executed copy"),
        (_set(1, metadata={}), "0 cells tagged 'parameters'"),
        (_set(2, metadata={"tags": ["parameters"]}), "2 cells tagged 'parameters'"),
        (lambda node: node.cells.insert(1, node.cells.pop(2)), "its first code cell"),
        (_set(1, source="size = 3"), "lacks its comment"),
        (_set(2, source="size"), "parameter colour is declared but no later cell reads it"),
        (_set(2, source="size, colour\nimport os"), "2 cells import"),
        (_set(2, source="size, colour\ndef f():\n    pass"), "defines f"),
        (_set(2, source="size, colour" + "\n1" * 25), "26 lines"),
        (_set(2, source="%matplotlib inline"), "not plain Python"),
        (_set(4, source="1"), "report.finish()"),
        (_set(4, source=""), "report.finish()"),
    ],
)
def test_every_rule_can_fail(sound, damage, problem):
    damage(sound.node)
    assert any(problem in found for found in lint.problems(sound)), lint.problems(sound)


def test_chapters_that_teach_may_define_functions(layout, write_notebook):
    cells = ("from fedlib import report", "def f(x):\n    return x", "report.finish()")
    assert lint.problems(write_notebook(layout, "foundations/page", *cells, finish=False)) == []
    assert lint.problems(write_notebook(layout, "mpt/page", *cells, finish=False)) != []


def test_notebook_without_code_is_a_problem(sound):
    sound.node.cells = [cell for cell in sound.node.cells if cell.cell_type == "markdown"]
    assert lint.problems(sound) == ["it has no code cell"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "not JSON",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: '{"cells": 3}',
        lambda text: text.replace('"cell_type": "markdown"', '"cell_type": "prose"'),
        lambda text: text.replace('"nbformat": 4', '"nbformat": 9'),
    ],
)
def test_file_that_is_no_valid_notebook_does_not_get_as_far_as_the_rules(sound, damage):
    text = sound.path.read_text()
    assert read(sound.page, sound.path).node == sound.node
    assert damage(text) != text
    sound.path.write_text(damage(text))
    with pytest.raises(InputError, match="is not a notebook that can be read"):
        read(sound.page, sound.path)
