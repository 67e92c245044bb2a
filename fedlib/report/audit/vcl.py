"""Audits of the tables that the VCL-FPFT paper prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedlib.data.cells.counts import COUNTS
from fedlib.report.audit.finding import Finding
from fedlib.report.register import Entry, table

_VCL = "VCL-FPFT"
_FEDAVG = "FedAvg"  # 50 rounds of communication; every other row of Tables 2, 3 and 5 is one-shot
TABLES = {
    1: "vcl_table1_cil_homogeneous.csv",
    2: "vcl_table2_oneshot_dirichlet.csv",
    3: "vcl_table3_oneshot_iid.csv",
    4: "vcl_table4_cil_heterogeneous.csv",
    5: "vcl_table5_oneshot_heterogeneous.csv",
    6: "vcl_table6_cl_medmnist4.csv",
    7: "vcl_table7_cl_three_tasks.csv",
    8: "vcl_table8_taskwise_three_tasks.csv",
}
"""Files of the printed tables by the number of the table."""
_ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX, _SEVEN, _EIGHT = TABLES.values()

# Half a unit of the last printed digit, and room for the rounding of binary fractions.
_HALF_CENT = 0.005 + 1e-9
# Tables 7 and 8 are partly quoted from other papers, which may have rounded twice.
_TWO_CENTS = 0.02 + 1e-9


def class_shares(dataset: str) -> tuple[float, ...]:
    """Return the share of each class in the official test set of a MedMNIST v2 set (Yang et al. 2023), in percent.

    They are the accuracies of predictors that always name the same class, with two decimals, as printed. Empty for
    sets whose counts are not known here.
    """
    counts = COUNTS.get(dataset.removesuffix("MNIST").lower(), {}).get("test", ())
    return tuple(round(100 * count / sum(counts), 2) for count in counts)


def _numbers(file: str, column: str, **row: str) -> dict[tuple[str, ...], float]:
    """Column of the rows that match, by the columns of the row's name that are not fixed by ``row``."""
    keys = [name for name in ("dataset", "partition", "method") if name in table(file)[0] and name not in row]
    return {
        tuple(line[name] for name in keys): float(line[column])
        for line in table(file)
        if line[column] and all(line[name] == text for name, text in row.items())
    }


def _accuracies(file: str, dataset: str, partition: str) -> dict[str, float]:
    found = _numbers(file, "accuracy", dataset=dataset, partition=partition)
    return {method: value for (method,), value in found.items()}


def _rank(scores: Mapping[str, float], without: tuple[str, ...] = ()) -> int:
    """Place of VCL-FPFT among ``scores``, 1 for the highest."""
    return 1 + sum(value > scores[_VCL] for name, value in scores.items() if name not in without)


def _cases(file: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys((line["dataset"], line["partition"]) for line in table(file)))


def _best_of_one_shot(file: str, cases: list[tuple[str, str]], allowed: int) -> Finding:
    """Whether VCL-FPFT is among the first ``allowed`` one-shot rows in every case."""
    lines, failed = [], False
    for dataset, partition in cases:
        scores = _accuracies(file, dataset, partition)
        rank = _rank(scores, without=(_FEDAVG,))
        failed |= rank > allowed
        above = scores.get(_FEDAVG, 0.0) > scores[_VCL]
        extra = f"; FedAvg with 50 rounds has {scores[_FEDAVG]:.2f}" if above else ""
        lines.append(f"{dataset} {partition}: {scores[_VCL]:.2f}, place {rank} of the one-shot rows{extra}")
    return Finding(failed, ". ".join(lines) + ".")


def _abstract_range(entry: Entry) -> Finding:
    low, high, most = (value.value for value in entry.values)
    cells = {
        **{("Table 6", name): v for (name,), v in _numbers(_SIX, "accuracy_mean", method=_VCL).items()},
        **{("Table 7", name): v for (name,), v in _numbers(_SEVEN, "avg_acc", method=_VCL).items()},
    }
    forgetting = [
        *_numbers(_SIX, "forgetting_mean", method=_VCL).values(),
        *_numbers(_SEVEN, "forgetting", method=_VCL).values(),
    ]
    below = {key: value for key, value in cells.items() if round(value) < low}
    named = ", ".join(f"{where} {dataset} {value:.2f}" for (where, dataset), value in below.items())
    return Finding(
        bool(below) or round(max(cells.values())) > high or max(forgetting) > most,
        f"{len(below)} of {len(cells)} printed averages lie below {low:g} %{': ' + named if named else ''}. "
        f"Printed forgetting is at most {max(forgetting):.2f} %.",
    )


def _order_of_partitions(entry: Entry) -> Finding:
    pairs = [("dirichlet_0.3", "dirichlet_0.6"), ("dirichlet_0.6", "IID"), ("dirichlet_0.3", "IID")]
    lines, failed = [], False
    for column, name in (("overall_acc", "overall"), ("avg_acc", "average")):
        found = _numbers(_ONE, column)
        datasets = sorted({dataset for dataset, _ in found})
        ordered = sum(found[d, low] < found[d, high] for d in datasets for low, high in pairs)
        best = sum(found[d, "IID"] == max(found[d, p] for p in ("IID", *pairs[0])) for d in datasets)
        total = len(pairs) * len(datasets)
        failed |= 2 * ordered <= total or 2 * best <= len(datasets)
        lines.append(
            f"{name.capitalize()} accuracy is in the stated order in {ordered} of {total} pairs of partitions, "
            f"IID is best on {best} of {len(datasets)} data sets"
        )
    return Finding(failed, ". ".join(lines) + ".")


def _best_on_blood_and_path(entry: Entry) -> Finding:
    cases = [case for case in _cases(_TWO) if case[0] in ("BloodMNIST", "PathMNIST")]
    return _best_of_one_shot(_TWO, cases, allowed=1)


def _second_on_oct_and_tissue(entry: Entry) -> Finding:
    cases = [("OCTMNIST", "dirichlet_0.3"), ("TissueMNIST", "dirichlet_0.3")]
    return _best_of_one_shot(_TWO, cases, allowed=2)


def _gains_at_alpha_03(entry: Entry) -> Finding:
    datasets = [dataset for dataset, partition in _cases(_TWO) if partition == "dirichlet_0.3"]
    weak, several, constant = [], 0, 0
    for dataset in datasets:
        scores = _accuracies(_TWO, dataset, "dirichlet_0.3")
        lesser = {name: scores[name] for name in ("FedAvg(1)", "DAFL", "DENSE")}
        weak.append(scores[_VCL] - max(lesser.values()))
        several += all(scores[_VCL] > scores[name] for name in ("FedISCA", "E-FedISCA"))
        constant += sum(value in class_shares(dataset) for value in lesser.values())
    return Finding(
        min(weak) <= 0 or several < 2,
        f"The lead over the best of FedAvg(1), DAFL and DENSE is {min(weak):.2f} to {max(weak):.2f} percentage "
        f"points; FedISCA and E-FedISCA are both below it on {several} of {len(datasets)} data sets. "
        f"{constant} of these {3 * len(datasets)} baseline cells equal the score of a constant prediction.",
    )


def _best_iid(entry: Entry) -> Finding:
    return _best_of_one_shot(_THREE, [("BloodMNIST", "IID"), ("PathMNIST", "IID")], allowed=1)


def _most_baselines_at_high_resolution(entry: Entry) -> Finding:
    lines, beaten, total = [], 0, 0
    for dataset in ("RSNA", "DiabeticRetinopathy", "ISIC"):
        scores = _accuracies(_THREE, dataset, "IID")
        others = [value for name, value in scores.items() if name not in (_VCL, _FEDAVG)]
        below = sum(value < scores[_VCL] for value in others)
        beaten, total = beaten + below, total + len(others)
        lines.append(f"{dataset}: {below} of {len(others)}")
    text = f"One-shot baselines below it: {', '.join(lines)}; together {beaten} of {total}."
    return Finding(2 * beaten <= total, text)


def _ranks_in_table_2(entry: Entry) -> Finding:
    first, second = (value.value for value in entry.values)
    readings = {"without FedAvg (50 rounds)": (_FEDAVG,), "with it": ()}
    counts = {}
    for name, without in readings.items():
        ranks = [_rank(_accuracies(_TWO, *case), without) for case in _cases(_TWO)]
        counts[name] = (ranks.count(1), ranks.count(2))
    text = "; ".join(f"{name} {a} first and {b} second places" for name, (a, b) in counts.items())
    return Finding(
        (first, second) not in counts.values(), f"Table 2 gives {text}, of {len(_cases(_TWO))} cases."
    )


def _heterogeneous_improves(entry: Entry) -> Finding:
    worse: dict[tuple[str, ...], float] = {}
    for column in ("overall_acc", "avg_acc"):
        plain, mixed = _numbers(_ONE, column), _numbers(_FOUR, column)
        worse |= {(*case, column): mixed[case] - plain[case] for case in plain if mixed[case] <= plain[case]}
    total = 2 * len(table(_FOUR))
    named = ", ".join(
        f"{dataset} {partition} {column.removesuffix('_acc')} {gap:+.2f}"
        for (dataset, partition, column), gap in sorted(worse.items(), key=lambda item: item[1])
    )
    return Finding(bool(worse), f"{len(worse)} of {total} cells of Table 4 are not above Table 1: {named}.")


def _best_heterogeneous_iid(entry: Entry) -> Finding:
    cases = [(dataset, "IID") for dataset in ("BloodMNIST", "DermaMNIST", "TissueMNIST")]
    finding = _best_of_one_shot(_FIVE, cases, allowed=1)
    gaps = []
    for dataset in ("OCTMNIST", "PathMNIST"):
        scores = _accuracies(_FIVE, dataset, "IID")
        gaps.append(f"{dataset} {scores[_VCL] - max(scores.values()):+.2f}")
    return Finding(finding.contradicted, f"{finding.text} Distance to the best: {', '.join(gaps)}.")


def _best_continual_table_6(entry: Entry) -> Finding:
    datasets = {dataset for dataset, _ in _numbers(_SIX, "accuracy_mean")}
    leads, spreads = [], []
    for dataset in sorted(datasets):
        scores = {m: v for (m,), v in _numbers(_SIX, "accuracy_mean", dataset=dataset).items()}
        leads.append(scores[_VCL] - max(value for name, value in scores.items() if name != _VCL))
        deviations = {m: v for (m,), v in _numbers(_SIX, "accuracy_std", dataset=dataset).items()}
        spreads.append(deviations[_VCL] < min(value for name, value in deviations.items() if name != _VCL))
    forgetting = [abs(value) for value in _numbers(_SIX, "forgetting_mean", method=_VCL).values()]
    return Finding(
        min(leads) <= 0 or max(forgetting) > 1 or not all(spreads),
        f"It leads by {min(leads):.2f} to {max(leads):.2f} percentage points, forgets at most "
        f"{max(forgetting):.2f} and has the smallest deviation on {sum(spreads)} of {len(spreads)} data sets.",
    )


def _highest_in_table_7(entry: Entry) -> Finding:
    lines, failed = [], False
    for dataset in ("OCTMNIST", "PathMNIST"):
        scores = {m: v for (m,), v in _numbers(_SEVEN, "avg_acc", dataset=dataset).items()}
        best = max(value for name, value in scores.items() if name not in (_VCL, "Joint"))
        failed |= scores[_VCL] <= best
        lines.append(
            f"{dataset}: {scores[_VCL]:.2f}, joint training {scores['Joint']:.2f}, best continual "
            f"baseline {best:.2f}"
        )
    return Finding(failed, ". ".join(lines) + ".")


def _regularisation_forgets(entry: Entry) -> Finding:
    forgetting = {(m, d): v for (d, m), v in _numbers(_SEVEN, "forgetting").items()}
    named = [value for (method, _), value in forgetting.items() if method in ("EWC", "MAS", "LwF")]
    generative = [value for (method, _), value in forgetting.items() if method in ("GR", "BIR")]
    return Finding(
        min(named) < 30,
        f"EWC, MAS and LwF forget {min(named):.2f} to {max(named):.2f} %, GR and BIR "
        f"{min(generative):.2f} to {max(generative):.2f} %.",
    )


def _readme_equals_table_1(entry: Entry) -> Finding:
    printed = _numbers(_ONE, "avg_acc")
    pairs = [(value.value, printed[tuple(value.name.split())]) for value in entry.values]
    equal = sum(ours == theirs for ours, theirs in pairs)
    return Finding(
        equal < len(pairs), f"{equal} of {len(pairs)} numbers equal the average column of Table 1."
    )


def _is_task_aware(file: str, name: str) -> Finding:
    outside = 0
    for line in table(file):
        tasks = [float(line[f"task{i}"]) for i in range(4) if line[f"task{i}"]]
        outside += not min(tasks) <= float(line["overall_acc"]) <= max(tasks)
    return Finding(
        outside > 0,
        "A class-incremental overall accuracy is a weighted mean of the tasks' accuracies and lies between the "
        f"lowest and the highest. In {name} it lies outside in {outside} of {len(table(file))} rows, so the task "
        "columns know the task of each image.",
    )


def _rows_agree_over_tables(entry: Entry) -> Finding:
    file, source = {"VCL-T2": (_TWO, _ONE), "VCL-T3": (_THREE, _ONE), "VCL-T5": (_FIVE, _FOUR)}[entry.id]
    overall, own = _numbers(source, "overall_acc"), _numbers(file, "accuracy", method=_VCL)
    shared = [case for case in own if case in overall]
    equal = sum(own[case] == overall[case] for case in shared)
    floor = sum(own[case] < max(class_shares(case[0])) for case in shared)
    name = {_ONE: "Table 1", _FOUR: "Table 4"}[source]
    return Finding(
        equal < len(shared),
        f"{equal} of {len(shared)} cells of its row equal the overall accuracy of {name}. {floor} of them are "
        "below the score of always predicting the largest class.",
    )


def _average_of_tasks(entry: Entry) -> Finding:
    assert entry.cell is not None
    line = next(row for row in table(entry.cell.file) if entry.cell.row.items() <= row.items())
    tasks = [float(line[f"task{i}"]) for i in range(4) if line[f"task{i}"]]
    return _mean_of(entry.values[0].value, tasks, "the task columns", _HALF_CENT)


def _average_of_table_8(entry: Entry) -> Finding:
    assert entry.cell is not None
    line = next(row for row in table(_EIGHT) if entry.cell.row.items() <= row.items())
    tasks = [float(line[f"task{i}"]) for i in (1, 2, 3)]
    return _mean_of(entry.values[0].value, tasks, "Table 8", _TWO_CENTS)


def _mean_of(printed: float, values: list[float], source: str, tolerance: float) -> Finding:
    mean = sum(values) / len(values)
    return Finding(
        abs(printed - mean) > tolerance, f"Printed {printed:.2f}; the mean of {source} is {mean:.2f}."
    )


AUDITS: dict[str, Callable[[Entry], Finding]] = {
    "vcl_abstract_range": _abstract_range,
    "vcl_order_of_partitions": _order_of_partitions,
    "vcl_best_on_blood_and_path": _best_on_blood_and_path,
    "vcl_second_on_oct_and_tissue": _second_on_oct_and_tissue,
    "vcl_gains_at_alpha_03": _gains_at_alpha_03,
    "vcl_best_iid": _best_iid,
    "vcl_most_baselines_at_high_resolution": _most_baselines_at_high_resolution,
    "vcl_ranks_in_table_2": _ranks_in_table_2,
    "vcl_heterogeneous_improves": _heterogeneous_improves,
    "vcl_best_heterogeneous_iid": _best_heterogeneous_iid,
    "vcl_best_continual_table_6": _best_continual_table_6,
    "vcl_highest_in_table_7": _highest_in_table_7,
    "vcl_regularisation_forgets": _regularisation_forgets,
    "vcl_readme_equals_table_1": _readme_equals_table_1,
    "vcl_table_1_is_task_aware": lambda entry: _is_task_aware(_ONE, "Table 1"),
    "vcl_table_4_is_task_aware": lambda entry: _is_task_aware(_FOUR, "Table 4"),
    "vcl_rows_agree_over_tables": _rows_agree_over_tables,
    "vcl_average_of_tasks": _average_of_tasks,
    "vcl_average_of_table_8": _average_of_table_8,
}
"""The audits of this paper by the name that register entries use."""
