"""Every claim is judged on the page that the register names for it, and on no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fedlib.book.layout import Layout
from fedlib.book.notebook import read
from fedlib.report import register

SOURCES = Layout(Path(__file__).resolve().parents[2]).sources()
JUDGE = "report.judge"
CLAIM = re.compile(r"(MPT|CKA|VCL)-\d+")
CLAIMS = [entry for paper in register.PAPERS for entry in register.select(paper, ["claim"]) if entry.parts]


def named(node: ast.AST) -> set[str]:
    """Claims that stand as text in a piece of code."""
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and CLAIM.fullmatch(part.value)
    }


def judging(node: ast.AST) -> list[ast.Call]:
    """The calls of ``report.judge`` in a piece of code."""
    return [part for part in ast.walk(node) if isinstance(part, ast.Call) and ast.unparse(part.func) == JUDGE]


@cache
def judged(page: str) -> frozenset[str]:
    """Claims that a page passes to ``report.judge``, by name or from the list that a loop runs through."""
    found: set[str] = set()
    for tree in read(page, SOURCES[page]).trees:
        passed = [call.args[0] for call in judging(tree)]
        passed += [node.iter for node in ast.walk(tree) if isinstance(node, ast.For) and judging(node)]
        found.update(*map(named, passed))
    return frozenset(found)


@pytest.mark.parametrize("paper", register.PAPERS)
def test_every_paper_has_claims_to_judge(paper: str) -> None:
    assert any(entry.paper == paper for entry in CLAIMS)


@pytest.mark.parametrize("entry", CLAIMS, ids=lambda entry: entry.id)
def test_a_claim_is_judged_on_its_page(entry: register.Entry) -> None:
    assert entry.id in judged(entry.notebook)


@pytest.mark.parametrize("page", SOURCES)
def test_a_page_judges_only_its_own_claims(page: str) -> None:
    texts = set().union(*map(named, read(page, SOURCES[page]).trees))
    foreign = {claim: register.lookup(claim).notebook for claim in texts}
    assert {claim for claim, home in foreign.items() if home != page} == set()
