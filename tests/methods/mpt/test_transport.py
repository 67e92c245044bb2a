"""Each transport pushes the covariance where it should, with the invariances of the table of section 5."""

from __future__ import annotations

import pytest
import torch

from fedlib.errors import InputError
from fedlib.methods.mpt.low_rank import LowRank, low_rank, transport_low_rank
from fedlib.methods.mpt.transport import KINDS, bures, prepare, transport, transport_matrix

PUSHES = ("ot", "zca", "chol", "pca")


def root(sigma, power=0.5):
    values, vectors = torch.linalg.eigh(sigma)
    return (vectors * values**power) @ vectors.T


def test_golden_m3_optimal_transport_and_whitening(close):
    s0 = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    st = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
    e = torch.tensor([1.0, -1.0], dtype=torch.float64)
    ot = [[1.5334962, -0.2806493], [-0.2806493, 0.8043480]]
    zca = [[1.5773503, -0.4226497], [-0.2113249, 0.7886751]]
    close(transport_matrix("ot", s0, st), ot, 1e-6)
    close(transport_matrix("zca", s0, st), zca, 1e-6)
    close(transport(prepare("ot", s0), st, e), [1.8141455, -1.0849973], 1e-6)
    close(transport(prepare("zca", s0), st, e), [2.0, -1.0], 1e-6)


@pytest.mark.parametrize("kind", PUSHES)
def test_it_pushes_one_covariance_to_the_other(close, kind, spd):
    s0, st = spd(1, 7), spd(2, 7)
    t = transport_matrix(kind, s0, st)
    close(t @ s0 @ t.T, st)
    e = torch.arange(7, dtype=torch.float64)  # and keeps the Mahalanobis length
    moved = t @ e
    close(moved @ torch.linalg.solve(st, moved), e @ torch.linalg.solve(s0, e))


@pytest.mark.parametrize("kind", ["scalar", "none"])
def test_scalar_and_static_do_not_push_the_covariance(kind, spd):
    s0, st = spd(1, 7), spd(2, 7)
    t = transport_matrix(kind, s0, st)
    assert (t @ s0 @ t.T - st).norm() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_equal_covariances_move_nothing(close, kind, spd):
    close(transport_matrix(kind, spd(1, 6), spd(1, 6)), torch.eye(6))


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_scale_is_followed_by_all_but_the_static_residual(close, kind, spd):
    expected = 1.0 if kind == "none" else 3.0
    close(transport_matrix(kind, spd(1, 6), 9 * spd(1, 6)), expected * torch.eye(6))


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_equivariance_holds_for_all_but_the_cholesky_form(kind, spd, rotation):
    s0, st, q = spd(1, 6), spd(2, 6), rotation(3, 6)
    t = transport_matrix(kind, s0, st)
    turned = transport_matrix(kind, q @ s0 @ q.T, q @ st @ q.T)
    error = float((turned - q @ t @ q.T).norm())
    if kind == "chol":
        assert error > 0.05
    else:
        assert error < 1e-8


@pytest.mark.parametrize(
    ("kind", "symmetric"), [("ot", True), ("zca", False), ("chol", False), ("pca", False)]
)
def test_only_optimal_transport_is_symmetric(kind, symmetric, spd):
    t = transport_matrix(kind, spd(1, 6), spd(2, 6))
    assert (float((t - t.T).norm()) < 1e-9) == symmetric


def test_optimal_transport_recovers_any_symmetric_positive_drift_exactly(close, spd):
    for seed in range(5):
        s0, drift = spd(seed, 9), spd(100 + seed, 9)
        close(transport_matrix("ot", s0, drift @ s0 @ drift.T), drift, 1e-7)
        assert (transport_matrix("zca", s0, drift @ s0 @ drift.T) - drift).norm() > 1e-3


def test_three_forms_of_optimal_transport_are_the_same(close, spd):
    s0, st = spd(1, 6), spd(2, 6)
    r0, rt = root(s0), root(st)
    inverse = root(s0, -0.5)
    close(transport_matrix("ot", s0, st), inverse @ root(r0 @ st @ r0) @ inverse)
    close(transport_matrix("ot", s0, st), rt @ root(rt @ s0 @ rt, -0.5) @ rt)


@pytest.mark.parametrize("d", [1, 2, 3, 65])
def test_optimal_transport_by_a_tridiagonal_root_is_the_formula_at_any_length_and_changes_no_argument(
    close, d, spd, random
):
    """Small and odd lengths, several vectors at once, views that are not contiguous, arguments left alone."""
    s0, st, columns = spd(1, d), spd(2, d), random(3, 2, d).T
    kept = s0.clone(), st.clone(), columns.clone()
    origin = prepare("ot", s0)
    stored = origin.covariance.clone(), origin.factor.clone()
    inverse, half = root(s0, -0.5), root(s0)
    expected = inverse @ root(half @ st @ half) @ inverse @ columns
    close(transport(origin, st, columns), expected, 1e-8)
    close(transport(origin, st, columns[:, 0]), expected[:, 0], 1e-8)
    wide = torch.zeros(2 * d, 3 * d, dtype=torch.float64)
    wide[::2, ::3] = st
    assert torch.equal(transport(origin, wide[::2, ::3], columns), transport(origin, st, columns))
    assert all(map(torch.equal, (s0, st, columns), kept))
    assert all(map(torch.equal, (origin.covariance, origin.factor), stored))


def test_optimal_transport_and_whitening_agree_where_covariances_commute(close, rotation):
    q = rotation(1, 6)
    s0 = (q * torch.arange(1.0, 7.0, dtype=torch.float64)) @ q.T
    st = (q * torch.tensor([6.0, 1.0, 3.0, 2.0, 5.0, 4.0], dtype=torch.float64)) @ q.T
    close(transport_matrix("ot", s0, st), transport_matrix("zca", s0, st))


def test_the_bures_cost_is_the_mean_squared_movement_of_optimal_transport(close, spd):
    s0, st = spd(1, 6), spd(2, 6)
    move = transport_matrix("ot", s0, st) - torch.eye(6)
    close(bures(s0, st), float((move @ s0 @ move.T).trace()))
    for kind in PUSHES:  # no other map that pushes one to the other moves less
        other = transport_matrix(kind, s0, st) - torch.eye(6)
        assert float((other @ s0 @ other.T).trace()) >= bures(s0, st) - 1e-9
    assert bures(s0, s0) == pytest.approx(0.0, abs=1e-9)


def test_whitening_amplifies_low_variance_directions_and_optimal_transport_does_not(random):
    """The reason for the default: a small change of covariance moves a residual of low variance by about
    1/s_j."""
    d = 48
    s0 = torch.diag(torch.exp(-torch.arange(d, dtype=torch.float64) / 8))
    generator = random(1, d, d) / d**0.5
    drift = torch.matrix_exp(0.35 * (generator + generator.T) / 2)
    st, e = drift @ s0 @ drift.T, random(2, d)
    errors = {
        kind: float((transport(prepare(kind, s0), st, e) - drift @ e).norm())
        for kind in ("ot", "zca", "none")
    }
    assert errors["ot"] < 1e-6
    assert errors["zca"] > errors["none"] > errors["ot"]


@pytest.mark.parametrize("kind", ["ot", "zca", "pca", "scalar", "none"])
def test_the_low_rank_form_is_exact_for_low_rank_covariances(close, kind, rotation, random):
    d, q = 20, 3

    def covariance(seed, rest):
        variances = torch.tensor([5.0, 3.0, 2.0], dtype=torch.float64) * (1 + 0.1 * seed)
        return LowRank(rotation(seed, d)[:, :q], variances, rest)

    a, b, e = covariance(1, 0.5), covariance(2, 0.7), random(3, d)
    if kind == "scalar":  # its scale is that of the span, not of the trace: exact only for equal shapes
        b = LowRank(a.directions, 4 * a.variances, 4 * a.rest)
    exact = transport(prepare(kind, a.dense()), b.dense(), e)
    found = transport_low_rank(kind, a, b, e)
    if kind == "none":  # nothing moves inside; the rest follows its own scale
        b = LowRank(b.directions, b.variances, a.rest)
        found = transport_low_rank(kind, a, b, e)
    if kind == "pca":  # equal eigenvalues outside the directions leave the matching open
        t = torch.stack([transport_low_rank(kind, a, b, column) for column in torch.eye(d).double()], 1)
        close(t @ a.dense() @ t.T, b.dense())
    else:
        close(found, exact)


def test_low_rank_keeps_the_leading_directions_and_the_trace(close, spd):
    sigma = spd(1, 10)
    approximation = low_rank(sigma, 4)
    close(approximation.dense().trace(), sigma.trace())
    close(low_rank(approximation.dense(), 4).dense(), approximation.dense())
    close(approximation.directions.T @ approximation.directions, torch.eye(4))


def test_shared_directions_do_not_break_the_low_rank_basis(close, spd, random):
    a, e = low_rank(spd(1, 10), 3), random(2, 10)
    close(transport_low_rank("ot", a, a, e), e)
    one = low_rank(spd(3, 10), 1)  # a single direction: the inner transport is that of one feature
    close(transport_low_rank("ot", one, one, e), e)


@pytest.mark.parametrize(
    "call",
    [
        lambda: prepare("best", torch.eye(3)),
        lambda: prepare("ot", torch.zeros(3, 3)),
        lambda: prepare("zca", -torch.eye(3)),
        lambda: transport(prepare("ot", torch.eye(3)), torch.eye(2), torch.ones(3)),
        lambda: transport(prepare("ot", torch.eye(3)), torch.eye(3), torch.ones(2)),
        lambda: transport(prepare("ot", torch.eye(3)), torch.full((3, 3), float("nan")), torch.ones(3)),
        lambda: low_rank(torch.eye(3), 3),
        lambda: prepare("ot", torch.ones(2, 3)),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError):
        call()
