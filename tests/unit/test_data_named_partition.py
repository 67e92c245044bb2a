"""Partitions by name: each name is its rule, and what the data do not allow is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedlib import data
from fedlib.data import partition
from fedlib.data.lossy_partition import LossySplit, dirichlet_code
from fedlib.data.named_partition import named
from fedlib.errors import InputError

LABELS = np.repeat(np.arange(6), 100)
RULES = {
    "IID": partition.iid(LABELS, 5, 1),
    "IID_stratified": partition.stratified(LABELS, 5, 1),
    "dirichlet_0.3": partition.dirichlet(LABELS, 5, 0.3, 1, min_size=10),
    "dirichlet_capped_0.3": partition.dirichlet_capped(LABELS, 5, 0.3, 1, min_size=10),
    "dirichlet_code_0.3": dirichlet_code(LABELS, 5, 0.3, 1),
}


@pytest.mark.parametrize("name", RULES)
def test_a_name_is_its_rule(name: str) -> None:
    found = named(name, LABELS, 5, 1, min_size=10)
    assert all(np.array_equal(a, b) for a, b in zip(found.clients, RULES[name].clients, strict=True))
    assert isinstance(found, LossySplit) == ("code" in name)


def test_each_hospital_of_cells_can_be_a_client() -> None:
    made, where = (
        data.load("cells:blood", train_images=200),
        data.domains("cells:blood", train_images=200),
    )
    assert where is not None
    split = named("domain", made.train.labels, 5, 0, domains=where["train"])
    assert all((where["train"][rows] == k).all() for k, rows in enumerate(split.clients))
    with pytest.raises(InputError, match="4 clients; the data set has 5 domains"):
        named("domain", made.train.labels, 4, 0, domains=where["train"])


def test_a_set_that_knows_no_domains_says_so() -> None:
    assert data.domains("digits") is None
    with pytest.raises(InputError, match="has 0 domains"):
        named("domain", LABELS, 5, 0)


@pytest.mark.parametrize(
    "name", ["iid", "dirichlet", "dirichlet_", "dirichlet_-1", "dirichlet_x", "code_0.3", ""]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="allowed: IID, IID_stratified, domain, dirichlet_<alpha>"):
        named(name, LABELS, 5, 0)
