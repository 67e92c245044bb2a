"""Scores of class-incremental learning."""

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from fedlib.errors import InputError
from fedlib.methods.continual.metrics import AccuracyMatrix, continual_scores, label_scores

G5 = np.array([[90, 0, 0], [80, 85, 0], [92, 80, 88]], dtype=float)


def test_golden_forgetting() -> None:
    found = continual_scores(G5)
    assert (found["forgetting_paper"], found["forgetting_code"], found["bwt"]) == (2.5, 1.5, -1.5)
    assert found["avg_acc"] == pytest.approx((92 + 80 + 88) / 3)
    lower = G5.copy()
    lower[2, 0] = 82
    found = continual_scores(lower)
    assert (found["forgetting_paper"], found["forgetting_code"]) == (6.5, 6.5)


def test_entries_above_the_diagonal_do_not_count() -> None:
    filled = G5.copy()
    filled[0, 1] = filled[0, 2] = filled[1, 2] = math.nan
    assert continual_scores(filled) == continual_scores(G5)


def test_one_task_has_no_forgetting() -> None:
    found = continual_scores(np.array([[70.0]]))
    assert found["avg_acc"] == 70
    assert math.isnan(found["forgetting_paper"])


@pytest.mark.parametrize("matrix", [np.zeros((2, 3)), np.full((2, 2), 101.0), np.full((2, 2), math.nan)])
def test_what_is_no_accuracy_matrix_is_refused(matrix: np.ndarray) -> None:
    with pytest.raises(InputError, match="allowed"):
        continual_scores(matrix)


def test_an_accuracy_that_is_no_percentage_is_named_with_its_place() -> None:
    wrong = G5.copy()
    wrong[2, 1] = 101.5
    with pytest.raises(InputError, match=r"accuracy on task 1 after task 2 is 101\.5; allowed: 0 to 100"):
        continual_scores(wrong)


def test_scores_of_unbalanced_labels_and_collapsed_predictors() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    constant = label_scores(labels, np.zeros(100, dtype=int), 3)
    assert constant["accuracy"] == constant["majority"] == 90
    assert constant["balanced_accuracy"] == 50
    assert constant["constant"] == 1
    mixed = labels.copy()
    mixed[:9] = 1
    found = label_scores(labels, mixed, 3)
    assert found["constant"] == 0
    assert found["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels, mixed))
    f1 = (2 * 81 / (2 * 81 + 9) + 2 * 10 / (2 * 10 + 9)) / 2
    assert found["macro_f1"] == pytest.approx(100 * f1)


@pytest.mark.parametrize(("labels", "said"), [([], []), ([0], [0, 1]), ([3], [0]), ([0], [-1])])
def test_bad_labels_are_refused(labels: list[int], said: list[int]) -> None:
    with pytest.raises(InputError, match="allowed"):
        label_scores(np.array(labels, dtype=int), np.array(said, dtype=int), 3)


TASKS = ((2, 3), (0, 1, 4))
LABELS = np.array([2, 3, 0, 1, 4, 4, 7])  # no task has class 7


def test_class_incremental_accuracy_is_never_above_the_task_aware_one() -> None:
    for seed in range(20):
        matrix = AccuracyMatrix(TASKS, LABELS)
        scores = np.random.default_rng(seed).integers(0, 3, (6, 5)).astype(float)  # many ties
        matrix.record(1, scores, (2, 3, 0, 1, 4))
        assert (matrix.values["cil"] <= matrix.values["taw"]).all()


def test_columns_follow_the_classes_and_not_the_order_of_arrival() -> None:
    matrix = AccuracyMatrix(TASKS, LABELS)
    classes = (4, 2, 0, 3, 1)
    perfect = np.array([[c == label for c in classes] for label in LABELS[:6]], dtype=float)
    matrix.record(1, perfect, classes)
    assert matrix.values["cil"][1].tolist() == [100, 100]
    assert matrix.samples.tolist() == [2, 4]
    assert matrix.overall()["accuracy"] == 100


def test_scope_cil_has_the_classes_seen_so_far_and_scope_all_the_whole_head() -> None:
    matrix = AccuracyMatrix(((0,), (1,)), np.array([0, 1]))
    matrix.record(0, np.array([[0.0, 1.0], [0.0, 1.0]]), (0, 1))
    assert matrix.values["cil"][0].tolist() == [100, 0]  # class 1 is still to come
    assert matrix.values["all"][0].tolist() == [0, 0]


def test_a_constant_predictor_that_knows_the_task_has_a_floor_of_its_own() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], [6, 2, 3, 1, 8])
    matrix = AccuracyMatrix(((0, 1), (2, 3), (4,)), labels)
    largest = np.array([[3.0, 1, 2, 0, 5]] * 20)  # class 4; 0 and 2 where the task is known
    matrix.record(2, largest, (0, 1, 2, 3, 4))
    everywhere, known = matrix.overall("cil"), matrix.overall("taw")
    assert (everywhere["majority"], everywhere["constant"]) == (40, 1)
    assert (everywhere["accuracy"], everywhere["balanced_accuracy"]) == (40, 20)
    assert (known["majority"], known["constant"]) == (pytest.approx(85), 1)
    assert (known["accuracy"], known["balanced_accuracy"]) == (pytest.approx(85), 60)
    assert matrix.constant_average("cil") == pytest.approx(100 / 3) == matrix.scores("cil")["avg_acc"]
    assert matrix.constant_average("taw") == pytest.approx(250 / 3) == matrix.scores("taw")["avg_acc"]
    largest[8:, 3] = 4  # of the second task, one class is still named for everything: 3
    largest[:2, 1] = 9  # of the first, no longer
    matrix.record(2, largest, (0, 1, 2, 3, 4))
    assert matrix.overall("taw")["constant"] == 0


def test_tasks_of_one_class_alone_leave_nothing_to_collapse() -> None:
    matrix = AccuracyMatrix(((0,), (1,)), np.array([0, 1, 1]))
    matrix.record(1, np.array([[1.0, 0]] * 3), (0, 1))
    assert (matrix.overall("taw")["constant"], matrix.overall("cil")["constant"]) == (0, 1)
    assert matrix.overall("taw")["majority"] == 100


def test_equal_counts_make_the_average_the_overall_accuracy() -> None:
    labels = np.repeat([0, 1, 2, 3], 5)
    matrix = AccuracyMatrix(((0, 1), (2, 3)), labels)
    matrix.record(1, np.random.default_rng(0).normal(size=(20, 4)), (0, 1, 2, 3))
    assert matrix.scores("cil")["avg_acc"] == pytest.approx(matrix.overall("cil")["accuracy"])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_scores_that_are_not_finite_are_refused(bad: float) -> None:
    matrix = AccuracyMatrix(((0, 1), (2,)), np.array([0, 1, 2]))
    scores = np.zeros((3, 2))
    scores[1, 0] = bad
    with pytest.raises(InputError, match=f"scores after task 0 hold {bad}; allowed: finite"):
        matrix.record(0, scores, (0, 1))


def test_tasks_of_one_class_are_noted_and_always_right_task_aware() -> None:
    matrix = AccuracyMatrix(((0, 3), (1,), (2,)), np.array([0, 1, 2, 3]))
    assert matrix.single == (1, 2)
    matrix.record(2, np.array([[9.0, 0, 0, 0]] * 4), (0, 3, 1, 2))  # says class 0 whatever it sees
    assert matrix.values["taw"][2].tolist() == [50, 100, 100]
    assert matrix.values["cil"][2].tolist() == [50, 0, 0]


@pytest.mark.parametrize(("tasks", "labels"), [(((0,), (0,)), [0]), ((), [0]), (((0,), (1,)), [5])])
def test_bad_tasks_are_refused(tasks: tuple, labels: list[int]) -> None:
    with pytest.raises(InputError, match="allowed"):
        AccuracyMatrix(tasks, np.array(labels))


@pytest.mark.parametrize(("tasks", "labels"), [(((0, 1), (2,)), [0, 2, -1]), (((0, -1), (2,)), [0, 2])])
def test_a_negative_class_is_not_taken_for_the_last_one(tasks: tuple, labels: list[int]) -> None:
    with pytest.raises(InputError, match="class -1 .* allowed: class numbers from 0"):
        AccuracyMatrix(tasks, np.array(labels))
