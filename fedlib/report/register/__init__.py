"""The results register: every numbered claim, table, figure and printed table cell of the three papers, once.

The entries lie beside this file in ``mpt.yaml``, ``fedcka.yaml`` and ``vcl.yaml``. Printed table cells are not
typed there: ``cells_from`` expands the CSV files of ``tables`` into one entry per cell. What an entry says about
our runs (the verdict) is never stored here; ``fedlib.report.verdict`` computes it.
"""

from fedlib.report.register.loading import coverage, load, lookup, read, select, table, title
from fedlib.report.register.schema import (
    COLUMNS,
    CONTRADICTED,
    KINDS,
    NOT_ATTEMPTED,
    NOT_REPRODUCED,
    PAPERS,
    REPRODUCED,
    TREND,
    WORDS,
    Cell,
    Entry,
    Filter,
    Frozen,
    Register,
    Rule,
    Title,
    Value,
    Window,
    Word,
)

__all__ = [
    "COLUMNS",
    "CONTRADICTED",
    "KINDS",
    "NOT_ATTEMPTED",
    "NOT_REPRODUCED",
    "PAPERS",
    "REPRODUCED",
    "TREND",
    "WORDS",
    "Cell",
    "Entry",
    "Filter",
    "Frozen",
    "Register",
    "Rule",
    "Title",
    "Value",
    "Window",
    "Word",
    "coverage",
    "load",
    "lookup",
    "read",
    "select",
    "table",
    "title",
]
