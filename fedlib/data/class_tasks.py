"""Sequences of tasks with disjoint classes, for class-incremental learning (Barros et al. 2026, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlib import seeds
from fedlib.errors import InputError


def class_order(num_classes: int, seed: int) -> tuple[int, ...]:
    """Return the order in which classes appear: the natural one for seed 0, a permutation for any other.

    The paper says "a fixed ordering per seed"; its public code uses the natural order.

    Raises:
        InputError: ``num_classes`` below 1, or a bad seed.
    """
    if num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; allowed: at least 1")
    if seed == 0:
        return tuple(range(num_classes))
    return tuple(int(c) for c in seeds.rng(seed, "class-order").permutation(num_classes))


def task_split(order: Sequence[int], num_tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in order; sizes differ by at most one, the larger tasks come first.

    A task of one class has task-aware accuracy 100 by construction; see :func:`warning`.

    Args:
        order: each class once.
        num_tasks: T.

    Raises:
        InputError: ``num_tasks`` not in 1 to the number of classes, or a class that occurs twice.
    """
    if not 1 <= num_tasks <= len(order):
        raise InputError(f"num_tasks is {num_tasks}; allowed: 1 to {len(order)}, the number of classes")
    if len(set(order)) != len(order):
        raise InputError(f"class order {tuple(order)} has a class twice; allowed: each class once")
    parts = np.array_split(np.asarray(order), num_tasks)
    return tuple(tuple(int(c) for c in part) for part in parts)


def single_class_tasks(tasks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the tasks of one class, 0-based: their task-aware accuracy is 100 by construction.

    >>> single_class_tasks([(0, 3), (1,), (2,)])
    (1, 2)
    """
    return tuple(t for t, task in enumerate(tasks) if len(task) == 1)


def warning(tasks: Sequence[Sequence[int]]) -> str:
    """Return the numbers of classes of the tasks, and a warning where a task has a single class.

    >>> print(warning([(0, 3), (1,)]))
    Classes of each task: 2, 1. Task-aware accuracy is 100 by construction on task 2, which has one class.
    """
    text = f"Classes of each task: {', '.join(str(len(task)) for task in tasks)}."
    if not (single := single_class_tasks(tasks)):
        return text
    one = len(single) == 1
    named = ("task " if one else "tasks ") + " and ".join(str(t + 1) for t in single)
    return (
        f"{text} Task-aware accuracy is 100 by construction on {named}, which {'has' if one else 'have'} "
        "one class."
    )
