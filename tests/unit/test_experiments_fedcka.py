"""The comparison of personalised methods on digits: who trains on what, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from fedlib.errors import InputError
from fedlib.experiments import fedcka_digits as digits
from fedlib.experiments import settings
from fedlib.experiments.federated import Bench

CONFIG = settings.load("fedcka", "smoke", rounds=2)


def test_clients_hold_disjoint_digits_of_one_kind_each_in_the_papers_proportions() -> None:
    domains = digits.Domains(Bench.of(CONFIG))
    parts = domains.train(0)
    total = len(domains.bench.images.train)
    assert sum(map(len, parts)) == total
    for part, scenes in zip(parts, digits.SCENES, strict=True):
        assert len(part) / total == pytest.approx(scenes / 700, abs=0.002)
    assert parts[2].images.mean() > parts[0].images.mean() + 50, "inverted"
    again = domains.train(0)
    assert all(np.array_equal(a.images, b.images) for a, b in zip(parts, again, strict=True))
    tests = domains.test()
    assert list(tests) == list(digits.VIEWS)
    assert np.array_equal(np.rot90(tests["plain"].images, axes=(1, 2)), tests["turned"].images)


def test_every_method_runs_and_is_scored_on_every_domain() -> None:
    study = digits.compare(CONFIG)
    table = digits.final(study, last=1)
    assert set(table["method"]) == set(digits.METHODS)
    assert set(table["domain"]) == {*digits.VIEWS, "weighted"}
    assert table["value"].between(0, 1).all()
    one = table[table["method"] == "FedAvg"].set_index("domain")["value"]
    weighted = sum(one[name] * scenes for name, scenes in zip(digits.VIEWS, digits.SCENES, strict=True)) / 700
    assert one["weighted"] == pytest.approx(weighted)


def test_what_is_kept_is_not_sent() -> None:
    study = digits.compare(CONFIG, ["own domain", "FedAvg", "FedBN", "FedCKA threshold"], tau=1.0)
    sent = study.select(metric="upload_bytes", round=2).set_index("method")["value"]
    assert sent["own domain"] < 2000, "numbers of samples and masks only"
    assert sent["own domain"] < sent["FedCKA threshold"] < sent["FedAvg"]
    assert sent["FedBN"] < sent["FedAvg"]
    share = study.select(metric="personal_share", method="FedCKA threshold")
    assert set(share["domain"]) == set(digits.VIEWS)


def test_a_threshold_of_zero_is_fedavg() -> None:
    study = digits.compare(CONFIG, ["FedAvg", "FedCKA threshold"], tau=0.0)
    table = digits.final(study, last=1).pivot_table("value", "domain", "method")
    assert (table["FedAvg"] == table["FedCKA threshold"]).all()


def test_unknown_methods_and_bad_options_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="method"):
        digits.compare(CONFIG, ["FedNova"])
    with pytest.raises(InputError, match="tau"):
        digits.compare(CONFIG, tau=2.0)


def test_the_pages_on_driving_scenes_have_settings_of_their_own() -> None:
    assert CONFIG.dataset == "digits"
    scenes = CONFIG.for_scenes()
    assert scenes.dataset == "roadworld-drives"
    assert scenes.rounds == CONFIG.rounds == 2
    assert scenes.for_scenes() == scenes
    assert settings.load("fedcka", "paper").for_scenes().dataset == "nuscenes"
    with pytest.raises(InputError, match=r"scenes: rounds is 0"):
        settings.load("fedcka", "smoke", {"scenes": {"rounds": 0}})


def test_a_setting_that_replaces_the_profiles_holds_on_driving_scenes_too() -> None:
    profile = settings.load("fedcka", "quick")
    changed = settings.load("fedcka", "quick", {"lr": 0.5}, rounds=7)
    assert (profile.for_scenes().rounds, profile.for_scenes().lr) == (
        profile.scenes["rounds"],
        profile.scenes["lr"],
    )
    assert (changed.rounds, changed.lr) == (changed.for_scenes().rounds, changed.for_scenes().lr) == (7, 0.5)
    assert changed.for_scenes().optimizer == profile.for_scenes().optimizer == "adamw"
    both = settings.load("fedcka", "quick", {"rounds": 7, "scenes": {"rounds": 2}})
    assert (both.rounds, both.for_scenes().rounds) == (7, 2), "what is said of scenes comes first"
