"""The audits of the printed tables say what the tables say, and contradict only what cannot be read otherwise."""

from __future__ import annotations

import pytest

from fedlib.errors import InputError
from fedlib.report import audit, register
from fedlib.report.register import Entry


def finding(claim_id: str) -> audit.Finding:
    found = audit.run(register.lookup(claim_id))
    assert found is not None
    return found


def test_exactly_these_entries_are_contradicted_by_the_papers_own_numbers() -> None:
    found = [
        entry.id for entry in register.load().entries if (result := audit.run(entry)) and result.contradicted
    ]
    assert found == ["VCL-1", "VCL-8", "VCL-9", "VCL-T1", "VCL-T4", "VCL-T7/VCL-FPFT/OCTMNIST/avg_acc"]


@pytest.mark.parametrize(
    ("claim_id", "words"),
    [
        ("VCL-1", "1 of 6 printed averages lie below 90 %: Table 6 TissueMNIST 60.21"),
        ("VCL-2", "13 of 15 pairs"),
        ("VCL-3", "BloodMNIST dirichlet_0.6: 86.79, place 1 of the one-shot rows; FedAvg with 50 rounds has 93"),
        ("VCL-4", "OCTMNIST dirichlet_0.3: 73.30, place 2"),
        ("VCL-5", "8 of these 15 baseline cells equal the score of a constant prediction"),
        ("VCL-6", "PathMNIST IID: 91.81, place 1"),
        ("VCL-7", "RSNA: 3 of 6, DiabeticRetinopathy: 6 of 6, ISIC: 5 of 6"),
        ("VCL-8", "without FedAvg (50 rounds) 5 first and 4 second places; with it 3 first and 3 second places"),
        ("VCL-9", "3 of 30 cells of Table 4 are not above Table 1: OCTMNIST IID overall -1.10, PathMNIST IID"),
        ("VCL-10", "Distance to the best: OCTMNIST -4.10, PathMNIST -0.75"),
        ("VCL-11", "leads by 23.22 to 33.09"),
        ("VCL-12", "OCTMNIST: 97.13, joint training 90.76, best continual baseline 62.00"),
        ("VCL-13", "GR and BIR 51.31 to 90.88 %"),
        ("VCL-18", "8 of 8 numbers"),
        ("VCL-T2", "10 of 10 cells of its row equal the overall accuracy of Table 1. 2 of them are below"),
        ("VCL-T3", "5 of 5 cells"),
        ("VCL-T5", "15 of 15 cells"),
        ("VCL-T7/VCL-FPFT/OCTMNIST/avg_acc", "Printed 97.13; the mean of Table 8 is 97.20"),
        ("CKA-8", "differ by 7 percentage points"),
        ("CKA-11", "fedcka 5"),
        ("CKA-T2", "10 of 10 averages"),
    ],
)  # fmt: skip
def test_what_an_audit_finds(claim_id: str, words: str) -> None:
    assert words in finding(claim_id).text


def test_overall_accuracy_lies_outside_the_tasks_in_28_of_30_rows() -> None:
    assert "outside in 14 of 15 rows" in finding("VCL-T1").text
    assert "outside in 14 of 15 rows" in finding("VCL-T4").text


def test_averages_are_the_means_of_the_printed_tasks() -> None:
    cells = [e for e in register.select("vcl", ["cell"]) if e.audit == "vcl_average_of_tasks"]
    assert len(cells) == 30
    assert not any(finding(entry.id).contradicted for entry in cells)
    cells = [e for e in register.select("vcl", ["cell"]) if e.audit == "vcl_average_of_table_8"]
    assert len(cells) == 30
    assert sum(finding(entry.id).contradicted for entry in cells) == 1


def changed(claim_id: str, **values: float) -> Entry:
    """An entry whose printed numbers were changed."""
    entry = register.lookup(claim_id)
    new = [
        value.model_copy(update={"value": values.get(f"v{number}", value.value)})
        for number, value in enumerate(entry.values)
    ]
    return entry.model_copy(update={"values": tuple(new)})


@pytest.mark.parametrize(
    ("entry", "contradicted"),
    [
        (changed("VCL-1", v0=60.0, v2=0.1), False),
        (changed("VCL-1", v0=60.0, v2=0.05), True),
        (changed("VCL-8", v1=4.0), False),
        (changed("VCL-8", v0=3.0), False),
        (changed("VCL-18", v3=96.5), True),
        (changed("CKA-8", v0=10.0), True),
        (changed("VCL-T7/EWC/OCTMNIST/avg_acc", v0=31.6), True),
        (changed("VCL-T1/PathMNIST/IID/avg_acc", v0=97.28), True),
    ],
)
def test_the_finding_follows_from_the_numbers_in_the_statement(entry: Entry, contradicted: bool) -> None:
    found = audit.run(entry)
    assert found is not None
    assert found.contradicted is contradicted


def test_the_finding_follows_from_the_numbers_in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def better(file: str) -> list[dict[str, str]]:
        rows = register.table(file)
        for row in rows:
            if file == "vcl_table4_cil_heterogeneous.csv":
                row["overall_acc"] = row["avg_acc"] = "99.99"
        return rows

    monkeypatch.setattr(audit.vcl, "table", better)
    assert not finding("VCL-9").contradicted
    assert finding("VCL-8").contradicted


def test_an_unknown_audit_is_refused() -> None:
    with pytest.raises(InputError, match="audit is 'none_such'"):
        audit.run(register.lookup("VCL-8").model_copy(update={"audit": "none_such"}))


def test_every_audit_is_used() -> None:
    assert set(audit.AUDITS) == {entry.audit for entry in register.load().entries if entry.audit}
