"""Class-incremental learning at one place: a sequence of tasks with disjoint classes, one file per method."""
