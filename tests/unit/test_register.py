"""The register holds every numbered claim, table, figure and printed cell once, and refuses what does not fit."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedlib.errors import InputError
from fedlib.report import register

TABLES = Path(register.__file__).parent / "tables"
# Columns of the CSV files that hold printed results; a deviation belongs to the cell of its mean.
RESULTS = {
    "accuracy", "overall_acc", "avg_acc", "task0", "task1", "task2", "task3", "accuracy_mean", "forgetting_mean",
    "forgetting", "A", "B", "C", "D", "E", "average", "train_scenes", "val_scenes",
}  # fmt: skip


def printed_cells() -> list[tuple[str, int, str, str]]:
    """Every printed result as (file, row number, column, text), read without the register."""
    cells = []
    for path in sorted(TABLES.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream)):
                wanted = RESULTS | ({"task1", "task2", "task3"} if "table8" in path.name else set())
                cells += [
                    (path.name, number, name, row[name]) for name in row if name in wanted and row[name]
                ]
    return cells


@pytest.mark.parametrize(("prefix", "count"), [("MPT", 22), ("CKA", 21), ("VCL", 18)])
def test_every_numbered_claim_is_present_once(prefix: str, count: int) -> None:
    claims = [entry.id for entry in register.select(kinds=["claim"])]
    found = [name for name in claims if name.startswith(prefix)]
    assert found == [f"{prefix}-{number}" for number in range(1, count + 1)]


def test_every_table_and_figure_that_the_papers_number_is_present() -> None:
    expected = {f"VCL-T{n}" for n in range(1, 9)} | {f"CKA-T{n}" for n in range(1, 7)}
    expected |= {"CKA-F1", "CKA-F2", "CKA-F3", "VCL-F1", "MPT-F4", "MPT-F5", "MPT-F7"}
    assert expected <= {entry.id for entry in register.load().entries}


def test_every_printed_cell_is_one_entry_with_the_printed_number() -> None:
    cells = printed_cells()
    rows = {file: register.table(file) for file in {cell[0] for cell in cells}}
    entries = {}
    for entry in register.select(kinds=["cell"]):
        assert entry.cell
        entries[entry.cell.file, tuple(entry.cell.row.items()), entry.cell.column] = entry
    assert len(cells) == len(entries) == 670
    for file, number, column, text in cells:
        matching = [
            entry
            for (where, row, name), entry in entries.items()
            if where == file
            and name == column
            and all(rows[file][number][key] == value for key, value in row)
        ]
        assert len(matching) == 1, (file, number, column)
        (entry,) = matching
        assert entry.values[0].printed.split(" ± ")[0] == text
        assert entry.values[0].value == entry.parts[0].value == float(text)


def test_a_printed_deviation_stays_with_its_mean_and_widens_the_tolerance() -> None:
    entry = register.lookup("VCL-T6/iCaRL/PathMNIST/forgetting")
    assert entry.paper_value == "-0.70 ± 6.41 %"
    assert entry.parts[0].tolerance == 6.41
    assert register.lookup("VCL-T6/VCL-FPFT/TissueMNIST/accuracy").parts[0].tolerance == 1.0


def test_a_dash_in_the_paper_is_no_entry() -> None:
    with pytest.raises(InputError, match="did you mean"):
        register.lookup("VCL-T1/OCTMNIST/IID/task2")


def test_each_entry_names_a_page_of_the_book() -> None:
    pages = {entry.notebook for entry in register.load().entries}
    # The list of the book's pages; a claim on a page that nobody writes would never be judged.
    assert pages <= {
        *(f"mpt/{name}" for name in (
            "preliminary-drift-study", "method-step-by-step", "fig-4-rare-f1-over-rounds", "fig-5-communication",
            "training-time", "remaining-fraction", "classification-tasks", "backbones",
            "residual-and-in-span-ablation", "fig-7-measured-vs-predicted", "reserve-or-train",
        )),
        *(f"fedcka/{name}" for name in (
            "table-1-domains", "method-step-by-step", "table-2-overall", "table-3-cross-domain", "table-4-masking",
            "table-5-footprint", "table-6-robustness", "fig-3-qualitative", "mask-anatomy",
        )),
        *(f"vcl/{name}" for name in (
            "protocol", "method-step-by-step", "tables-2-3-one-shot", "table-1-class-incremental",
            "tables-4-5-heterogeneous", "tables-6-8-continual", "ablations", "audit-of-the-printed-numbers",
            "paper-vs-code",
        )),
    }  # fmt: skip


def test_every_entry_can_be_judged_or_says_why_not() -> None:
    for entry in register.load().entries:
        judged = entry.parts or entry.rests_on or entry.audit
        assert judged or "without a number to judge" in entry.reason, entry.id


def test_an_f1_of_a_lost_class_is_never_averaged_over_rounds_before_the_loss() -> None:
    """In a short run the last ten rounds begin before the departure, where nothing is lost yet."""
    for entry in register.load().entries:
        for part in entry.parts if entry.paper == "mpt" else ():
            if part.metric == "rare_f1":
                sides = (part.where, part.ours, part.against or {}, part.minus or {})
                assert any("phase" in side for side in sides), f"{entry.id}: {part.says}"


def test_the_register_is_read_once() -> None:
    assert register.load() is register.load()


GOOD = """
title: {method: MPT, title: T, citation: c, year: 2026}
reason: not built
data: [nuimages]
entries:
  - {id: MPT-1, kind: claim, where: here, statement: says, notebook: mpt/page,
     parts: [{says: s, metric: m, direction: ">"}]}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: claim", "kind: rumour", "MPT-1: kind"),
        ("MPT-1", "VCL-1", "VCL-1.*MPT-"),
        ("mpt/page", "vcl/page", "no page name of mpt"),
        ("mpt/page", "mpt/Page One", "no page name"),
        ("metric: m,", "metric: m, where: {colour: red},", "rule column is 'colour'"),
        ('direction: ">"', 'direction: "!"', "direction"),
        (', direction: ">"', "", "needs a direction or a value"),
        ('direction: ">"', "value: 3", "value and tolerance"),
        ('direction: ">"}]', "value: 3, tolerance: 1}], data: []", "named data"),
        ('direction: ">"', "value: 3, tolerance: 1, over: [task]", "belongs to one group"),
        ("data: [nuimages]", "", "mpt.yaml lacks data"),
        ('direction: ">"', 'direction: "~"', "positive margin"),
        ('direction: ">"', 'direction: ">", share: 0', "share"),
        ('direction: ">"', 'direction: ">", rounds: {first: 0.5, last: 2}', "either first, or last"),
        ('direction: ">"', 'direction: ">", rounds: {first: 1.5}', "whole number, or a share"),
        ('direction: ">"', 'direction: ">", against_each: [method]', "against_each needs against"),
        ("metric: m,", "", "no metric"),
        ("statement: says", "statement: ' '", "statement"),
        ("where: here", "where: here, verdict: reproduced", "verdict"),
    ],
)
def test_a_faulty_entry_is_refused_by_name(old: str, new: str, message: str) -> None:
    assert register.read(GOOD, "mpt")[1]
    with pytest.raises(InputError, match=message):
        register.read(GOOD.replace(old, new), "mpt")


def test_one_id_twice_is_refused() -> None:
    title, entries = register.read(GOOD, "mpt")
    with pytest.raises(ValueError, match="given twice: MPT-1"):
        register.Register(titles=(title,), entries=(*entries, *entries))


def test_resting_on_an_unknown_claim_is_refused() -> None:
    title, (entry,) = register.read(GOOD, "mpt")
    lost = entry.model_copy(update={"id": "MPT-F1", "rests_on": ("MPT-99",), "parts": ()})
    with pytest.raises(ValueError, match="MPT-99, which is no entry"):
        register.Register(titles=(title,), entries=(entry, lost))


def test_coverage_counts_every_entry_once() -> None:
    counts = register.coverage({"MPT-13": register.TREND, "VCL-8": register.CONTRADICTED})
    assert sum(sum(paper.values()) for paper in counts.values()) == len(register.load().entries)
    assert counts["mpt"][register.TREND] == counts["vcl"][register.CONTRADICTED] == 1
    assert register.coverage({}, kinds=["claim"])["fedcka"] == {
        word: 21 if word == register.NOT_ATTEMPTED else 0 for word in register.WORDS
    }
    with pytest.raises(InputError, match="MPT-1000"):
        register.coverage({"MPT-1000": register.TREND})
    with pytest.raises(InputError, match="verdict"):
        register.coverage({"MPT-1": "fine"})


def test_windows_choose_rounds() -> None:
    rounds = [13, 14, 15, 16, 17, 18, 19, 20]
    assert register.Window(first=3).choose(rounds) == [13, 14, 15]
    assert register.Window(first=25).choose(rounds) == rounds
    assert register.Window(last=0.25).choose(rounds) == [19, 20]
    assert register.Window(last=0.01).choose(rounds) == [20]
    assert register.Window(start=15, end=17).choose(rounds) == [15, 16, 17]
    assert register.Window(end=14).choose(rounds) == [13, 14]
