"""Every claim is judged on the page that the register names for it, and on no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fedlib.book.layout import Layout
from fedlib.book.notebook import read
from fedlib.report import register

SOURCES = Layout(Path(__file__).resolve().parents[2]).sources()
CLAIM = re.compile(r"(MPT|CKA|VCL)-\d+")
MPT = [entry for entry in register.select("mpt", ["claim"]) if entry.notebook in SOURCES]


def judged(page: str) -> set[str]:
    """Claims that stand as text in the code of a page."""
    return {
        node.value
        for tree in read(page, SOURCES[page]).trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CLAIM.fullmatch(node.value)
    }


def test_the_book_has_pages_that_judge() -> None:
    assert MPT


@pytest.mark.parametrize("entry", MPT, ids=lambda entry: entry.id)
def test_a_claim_is_judged_on_its_page(entry: register.Entry) -> None:
    assert entry.id in judged(entry.notebook)


@pytest.mark.parametrize("page", SOURCES)
def test_a_page_judges_only_its_own_claims(page: str) -> None:
    foreign = {claim: register.lookup(claim).notebook for claim in judged(page)}
    assert {claim for claim, home in foreign.items() if home != page} == set()
