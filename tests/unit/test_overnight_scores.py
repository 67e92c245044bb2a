"""The table of overnight scores in the overview of FedCKA says what the recorded results say."""

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2] / "book"
ROWS = {
    "fedavg": "FedAvg",
    "feddyn": "FedDyn",
    "pcgrad": "PCGrad",
    "fedbn": "FedBN",
    "fedrep": "FedRep",
    "fedselect": "FedSelect",
    "fedmc": "FedMC",
    "fedcka": "FedCKA, threshold 0.5",
}


@pytest.mark.parametrize(("score", "part"), [("NDS", 1), ("mAP", 2), ("car AP", 3)])
def test_the_scores_are_the_recorded_ones(score: str, part: int) -> None:
    printed = pd.read_csv(ROOT / "fedcka" / "overnight-scores.csv", dtype=str).set_index("method")[score]
    sides = pd.read_csv(ROOT / "recorded" / "fedcka" / "overnight" / f"CKA-7-{part}.csv")
    ours = sides.drop_duplicates("seed").assign(method="fedcka", theirs=lambda rows: rows["ours"])
    found = pd.concat([sides, ours]).groupby("method")["theirs"].agg(["mean", "std"])
    assert set(found.index) == set(ROWS)
    for method, (mean, sd) in found.iterrows():
        wanted = f"{mean:.3f} ± {sd:.3f}" if score == "NDS" else f"{mean:.{2 + (score == 'mAP')}f}"
        assert printed[ROWS[str(method)]].replace("\N{NO-BREAK SPACE}", " ") == wanted


def test_the_best_share_is_the_recorded_one() -> None:
    printed = pd.read_csv(ROOT / "fedcka" / "overnight-scores.csv", dtype=str).set_index("method")["NDS"]
    best = pd.read_csv(ROOT / "recorded" / "fedcka" / "overnight" / "CKA-21-1.csv")["theirs"]
    assert printed["FedCKA, share 0.1"].startswith(f"{best.mean():.3f}")
