"""Class orders and task splits."""

import pytest

from fedlib.data.class_tasks import class_order, task_split, warning
from fedlib.errors import InputError


@pytest.mark.parametrize(
    ("classes", "tasks", "sizes"),
    [(9, 4, (3, 2, 2, 2)), (11, 4, (3, 3, 3, 2)), (7, 4, (2, 2, 2, 1)), (4, 3, (2, 1, 1)), (10, 5, (2,) * 5)],
)
def test_golden_task_sizes(classes: int, tasks: int, sizes: tuple[int, ...]) -> None:
    split = task_split(class_order(classes, 0), tasks)
    assert tuple(map(len, split)) == sizes
    assert [c for task in split for c in task] == list(range(classes))


def test_orders_depend_on_the_seed_alone_and_hold_each_class_once() -> None:
    assert class_order(9, 3) == class_order(9, 3)
    assert class_order(9, 3) != class_order(9, 4)
    assert sorted(class_order(9, 3)) == list(range(9))


def test_given_orders_are_kept() -> None:
    assert task_split([0, 3, 1, 2], 3) == ((0, 3), (1,), (2,))


@pytest.mark.parametrize(("order", "tasks"), [((0, 1), 3), ((0, 1), 0), ((0, 0), 1)])
def test_bad_splits_are_refused(order: tuple[int, ...], tasks: int) -> None:
    with pytest.raises(InputError, match="allowed"):
        task_split(order, tasks)


def test_tasks_of_one_class_are_warned_about() -> None:
    assert "100 by construction on tasks 2 and 3, which have" in warning(task_split([0, 3, 1, 2], 3))
    assert "construction" not in warning([(0, 1), (2, 3)])
