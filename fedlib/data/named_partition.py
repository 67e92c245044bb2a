"""Partitions by name, as settings and tables write them: ``IID``, ``dirichlet_0.3`` and so on."""

from __future__ import annotations

import re

import numpy as np

from fedlib.data import partition
from fedlib.data.lossy_partition import dirichlet_code
from fedlib.data.partition import Holdings
from fedlib.errors import InputError

PATTERN = r"^(IID|IID_stratified|domain|dirichlet(_capped|_code)?_\d+(\.\d+)?)$"
FORMS = "IID, IID_stratified, domain, dirichlet_<alpha>, dirichlet_capped_<alpha>, dirichlet_code_<alpha>"


def named(
    name: str,
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    min_size: int = 0,
    domains: np.ndarray | None = None,
) -> Holdings:
    """Return the clients' samples under a rule of :mod:`.partition` or :mod:`.lossy_partition`.

    Args:
        name: ``IID``; ``IID_stratified``; ``domain``: a client for each domain, for example each hospital;
            ``dirichlet_<alpha>``; ``dirichlet_capped_<alpha>``; ``dirichlet_code_<alpha>``, which loses and
            repeats samples and fills clients up to 50, whatever ``min_size`` is.
        labels: class of each sample, (N,).
        num_clients: K.
        seed: of the experiment.
        min_size: Dirichlet splits are drawn again until every client has this many samples.
        domains: of each sample, (N,); None if the data set has none.

    Raises:
        InputError: another name, a rule that these data do not allow, or no draw that meets ``min_size``.
    """
    if not re.fullmatch(PATTERN, name):
        raise InputError(f"partition is {name!r}; allowed: {FORMS}")
    if name == "IID":
        return partition.iid(labels, num_clients, seed)
    if name == "IID_stratified":
        return partition.stratified(labels, num_clients, seed)
    if name == "domain":
        count = 0 if domains is None else len(np.unique(domains))
        if domains is None or count != num_clients:
            raise InputError(
                f"partition is 'domain' with {num_clients} clients; the data set has {count} domains"
            )
        return partition.by_domain(domains)
    rule, alpha = name.rsplit("_", 1)
    if rule == "dirichlet_code":
        return dirichlet_code(labels, num_clients, float(alpha), seed)
    draw = partition.dirichlet if rule == "dirichlet" else partition.dirichlet_capped
    return draw(labels, num_clients, float(alpha), seed, min_size=min_size)
