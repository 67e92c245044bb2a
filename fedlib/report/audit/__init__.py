"""What the papers' printed tables say about the papers' own statements; needs no run.

Each audit recomputes one statement from the CSV files of ``register/tables``. A statement counts as contradicted
only if no fair reading of it agrees with the printed numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from fedlib.errors import choose
from fedlib.report.audit import fedcka, vcl
from fedlib.report.audit.finding import Finding
from fedlib.report.audit.vcl import class_shares
from fedlib.report.register import Entry

__all__ = ["AUDITS", "Finding", "class_shares", "run"]


def run(entry: Entry) -> Finding | None:
    """Return what the printed tables say about an entry, or None if it has no audit.

    Raises:
        InputError: the entry names an audit that does not exist.
    """
    return None if entry.audit is None else AUDITS[choose("audit", entry.audit, AUDITS)](entry)


AUDITS: dict[str, Callable[[Entry], Finding]] = vcl.AUDITS | fedcka.AUDITS
"""The audits by the name that register entries use."""
