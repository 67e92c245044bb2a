"""Runs: computed once, stored whole, checked when read."""

from fedlib.runs.store import DamagedRun, Run, RunSpec, Store, Workspace, environment, versions

__all__ = ["DamagedRun", "Run", "RunSpec", "Store", "Workspace", "environment", "versions"]
