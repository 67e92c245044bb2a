"""Which client holds which sample.

Every rule below gives each sample exactly one owner, so that no sample can be dealt twice or lost, and draws at
random only from ``(seed, "partition", rule)``. Clients may end up empty; nothing is repaired behind your back. The
rule of a public code that does lose, repeat and repair is kept apart, in :mod:`fedlib.data.lossy_partition`.

Two different things are called "Dirichlet partition". Here it is *per class over clients* (:func:`dirichlet`),
as in Yurochkin et al. (Bayesian nonparametric federated learning of neural networks, ICML 2019): each class draws
the shares of the clients. Hsu, Qi and Brown (arXiv:1909.06335, 2019), often cited for it, draw *per client over
classes*: each of equally large clients draws its class distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlib import seeds
from fedlib.errors import InputError


@dataclass(frozen=True, eq=False)
class Holdings:
    """Index arrays of the clients into one list of samples, with no rule about who shares what.

    Attributes:
        clients: client k holds the samples ``clients[k]``: int64 (n_k,), possibly empty.
        total: number of samples N of the list.

    Raises:
        InputError: no client, or an index outside 0..N-1.
    """

    clients: tuple[np.ndarray, ...]
    total: int

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("a partition needs at least one client")
        object.__setattr__(self, "clients", tuple(_indices(part, self.total) for part in self.clients))

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client, int64 (K,)."""
        return np.array([len(client) for client in self.clients], dtype=np.int64)

    def class_counts(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Return how many samples of each class each client holds, int64 (K, C).

        Raises:
            InputError: if ``labels`` does not fit to this partition.
        """
        labels = check_labels(labels)
        if len(labels) != self.total or labels.max() >= num_classes:
            raise InputError(
                f"{len(labels)} labels up to {labels.max()}; allowed: {self.total} labels below {num_classes}"
            )
        return np.stack([np.bincount(labels[client], minlength=num_classes) for client in self.clients])


@dataclass(frozen=True, eq=False)
class Partition(Holdings):
    """Index arrays of the clients into one list of samples, each of which has one owner.

    Attributes:
        left_out: samples that no client holds: int64 (m,).

    Raises:
        InputError: an index outside 0..N-1, given twice, or missing from both ``clients`` and ``left_out``.
    """

    left_out: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "left_out", _indices(self.left_out, self.total))
        owners = np.bincount(np.concatenate([*self.clients, self.left_out]), minlength=self.total)
        if (owners > 1).any():
            raise InputError(
                f"index {int(owners.argmax())} is given to {int(owners.max())} owners; allowed: one"
            )
        if (owners == 0).any():
            raise InputError(f"index {int(owners.argmin())} has no owner and is not listed as left out")


def iid(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """Deal all samples at random; sizes differ by at most one.

    Raises:
        InputError: more clients than samples, or bad labels.
    """
    labels, num_clients = _common(labels, num_clients)
    owner = np.empty(len(labels), dtype=np.int64)
    owner[seeds.rng(seed, "partition", "iid").permutation(len(labels))] = np.arange(len(labels)) % num_clients
    return _from_owner(owner, num_clients)


def stratified(labels: np.ndarray, num_clients: int, seed: int) -> Partition:
    """Deal class after class at random; sizes, and the counts of each class, differ by at most one.

    Raises:
        InputError: more clients than samples, or bad labels.
    """
    labels, num_clients = _common(labels, num_clients)
    shuffled = seeds.rng(seed, "partition", "stratified").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_class] = (
        np.arange(len(labels)) % num_clients
    )  # the next class goes on where the last one stopped
    return _from_owner(owner, num_clients)


def dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int, min_size: int = 0, max_tries: int = 100
) -> Partition:
    """Split each class over the clients by shares drawn from Dirichlet(alpha, ..., alpha).

    A small ``alpha`` gives each class to few clients; a large one comes near equal shares. The class is cut at
    the rounded cumulative shares, so the split is complete.

    Args:
        labels: class of each sample, (N,).
        num_clients: K.
        alpha: concentration, > 0.
        seed: of the experiment.
        min_size: the whole split is drawn again until every client has this many samples.
        max_tries: number of draws after which this is given up.

    Raises:
        InputError: a value out of range, more clients than samples, or no draw that meets ``min_size``.
    """
    labels, num_clients, alpha = *_common(labels, num_clients), check_positive("alpha", alpha)
    return _drawn_until(labels, num_clients, alpha, seed, min_size, max_tries, "dirichlet", _dirichlet_counts)


def dirichlet_capped(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int, min_size: int = 0, max_tries: int = 100
) -> Partition:
    """As :func:`dirichlet`, but a client that holds N/K samples gets none of the classes that follow.

    Its share goes to the others in proportion, so sizes stay close to each other. This is the split of FedISCA
    (Kang et al. 2023), inherited from older public code; it goes through the classes in rising order.

    Args:
        labels: class of each sample, (N,).
        num_clients: K.
        alpha: concentration, > 0.
        seed: of the experiment.
        min_size: the whole split is drawn again until every client has this many samples.
        max_tries: number of draws after which this is given up.

    Raises:
        InputError: a value out of range, more clients than samples, or no draw that meets ``min_size``.
    """
    labels, num_clients, alpha = *_common(labels, num_clients), check_positive("alpha", alpha)
    return _drawn_until(
        labels, num_clients, alpha, seed, min_size, max_tries, "dirichlet_capped", _capped_counts
    )


def by_domain(domains: Sequence[str] | Sequence[int] | np.ndarray) -> Partition:
    """Give every domain its own client, in the sorted order of the domains' names.

    Raises:
        InputError: no domains, or ones that are neither text nor integers.
    """
    array = np.asarray(domains)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuU":
        raise InputError(
            f"domains are {array.dtype} {array.shape}; allowed: one text or integer for each sample"
        )
    names, owner = np.unique(array, return_inverse=True)
    return _from_owner(owner, len(names))


def departure(
    labels: np.ndarray,
    num_clients: int,
    rare_class: int,
    remaining_fraction: float,
    seed: int,
    alpha: float = 0.5,
) -> Partition:
    """Make client 0 dominate one class, so that little of it remains when client 0 leaves (MPT, Jang et al.).

    Of the n samples of ``rare_class`` client 0 holds round((1 - remaining_fraction) n), but at most n - 1; the
    rest is dealt evenly to the other clients, from a random one on. All other classes are split over all clients
    as in :func:`dirichlet`.

    Args:
        labels: class of each sample, (N,).
        num_clients: K >= 2.
        rare_class: the class that client 0 dominates.
        remaining_fraction: share of it that the other clients hold, in (0, 1].
        seed: of the experiment.
        alpha: concentration for the other classes, > 0.

    Raises:
        InputError: a value out of range, more clients than samples, or fewer than two samples of the rare class.
    """
    labels, num_clients = _common(labels, num_clients)
    alpha = check_positive("alpha", alpha)
    if num_clients < 2:
        raise InputError(f"num_clients is {num_clients}; allowed: at least 2, since one leaves")
    if not (_is_number(remaining_fraction) and 0 < remaining_fraction <= 1):
        raise InputError(f"remaining_fraction is {remaining_fraction!r}; allowed: 0 < fraction <= 1")
    rare_class = check_whole("rare_class", rare_class, 0)
    classes, class_sizes = np.unique(labels, return_counts=True)
    n = int(class_sizes[classes == rare_class].sum())
    if n < 2:
        raise InputError(
            f"rare_class is {rare_class}, of which there are {n} samples; allowed: a class with at least two, of "
            f"{classes[class_sizes > 1].tolist()}"
        )
    rng = seeds.rng(seed, "partition", "departure")
    counts = _dirichlet_counts(class_sizes, num_clients, alpha, rng)
    remaining = max(1, n - round((1 - remaining_fraction) * n))
    others = num_clients - 1
    dealt = (rng.integers(others) + np.arange(remaining)) % others
    counts[classes == rare_class] = [n - remaining, *np.bincount(dealt, minlength=others)]
    return _from_owner(_deal(labels, counts, rng), num_clients)


_Counts = Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]


def _drawn_until(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int, min_size: int, max_tries: int, rule: str,
    draw: _Counts,
) -> Partition:  # fmt: skip
    """Deal by counts (C, K) drawn with ``draw``, again and again until every client has ``min_size`` samples."""
    min_size, max_tries = check_whole("min_size", min_size, 0), check_whole("max_tries", max_tries, 1)
    if num_clients * min_size > len(labels):
        raise InputError(
            f"min_size is {min_size}, but {len(labels)} samples give {num_clients} clients "
            f"at most {len(labels) // num_clients} each"
        )
    rng = seeds.rng(seed, "partition", rule)
    class_sizes = np.unique(labels, return_counts=True)[1]
    best = 0
    for _ in range(max_tries):
        counts = draw(class_sizes, num_clients, alpha, rng)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= min_size:
            return _from_owner(_deal(labels, counts, rng), num_clients)
        best = max(best, smallest)
    raise InputError(
        f"no split of {max_tries} draws gives every client min_size = {min_size} samples (the best one gave its "
        f"smallest client {best}); lower min_size or num_clients = {num_clients}, or raise alpha = {alpha:g}"
    )


def _dirichlet_counts(
    class_sizes: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw how many samples of each class each client gets: int64 (C, K), rows sum to ``class_sizes``."""
    return _cut(rng.dirichlet(np.full(num_clients, alpha), size=len(class_sizes)), class_sizes)


def _capped_counts(
    class_sizes: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """As :func:`_dirichlet_counts`; clients that hold N/K samples get none of the classes that follow."""
    held, rows = np.zeros(num_clients, dtype=np.int64), []
    for size in class_sizes:
        free = held < class_sizes.sum() / num_clients  # at least one, as long as samples are left
        shares = rng.dirichlet(np.full(num_clients, alpha)) * free
        # a tiny alpha can give all to clients that are full; then the free ones share evenly
        shares = shares / shares.sum() if shares.sum() > 0 else free / free.sum()
        rows.append(_cut(shares[None], np.array([size]))[0])
        held += rows[-1]
    return np.stack(rows)


def _cut(shares: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
    """Return whole numbers (C, K) near ``shares`` of ``class_sizes`` (C,) whose rows sum to these."""
    cuts = np.rint(np.cumsum(shares, axis=1) * class_sizes[:, None]).astype(np.int64)
    cuts[:, -1] = class_sizes
    return np.diff(np.minimum(cuts, class_sizes[:, None]), axis=1, prepend=0)


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give ``counts[c, k]`` random samples of the c-th class present to client k; owner of each sample (N,)."""
    owner = np.empty(len(labels), dtype=np.int64)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner[by_class] = np.concatenate([np.repeat(np.arange(counts.shape[1]), row) for row in counts])
    return owner


def _from_owner(owner: np.ndarray, num_clients: int) -> Partition:
    by_owner = np.argsort(owner, kind="stable")  # stable: the indices of each client are in rising order
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))
    clients = tuple(np.split(by_owner, ends[:-1]))
    return Partition(clients, len(owner), np.empty(0, dtype=np.int64))


def _common(labels: np.ndarray, num_clients: int) -> tuple[np.ndarray, int]:
    labels, num_clients = check_labels(labels), check_whole("num_clients", num_clients, 1)
    if num_clients > len(labels):
        raise InputError(
            f"num_clients is {num_clients}; allowed: at most the number of samples, {len(labels)}"
        )
    return labels, num_clients


def _indices(part: np.ndarray, total: int) -> np.ndarray:
    array = np.asarray(part)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"indices are {array.dtype} {array.shape}; allowed: 1-D integers")
    array = array.astype(np.int64)  # a copy: the caller's array stays writeable
    if outside := array[(array < 0) | (array >= total)].tolist():
        raise InputError(f"index {outside[0]} is outside 0..{total - 1}")
    array.flags.writeable = False
    return array


def check_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels (N,) as int64, or raise an InputError if they are not class numbers."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        raise InputError(f"labels are {array.dtype} {array.shape}; allowed: 1-D integers >= 0, at least one")
    return array.astype(np.int64)


def check_whole(name: str, value: int, least: int) -> int:
    """Return an integer, or raise an InputError if it is none or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} is {value!r}; allowed: an integer >= {least}")
    return int(value)


def check_positive(name: str, value: float) -> float:
    """Return a number, or raise an InputError if it is not above 0 or not finite."""
    if not _is_number(value) or not 0 < value < np.inf:
        raise InputError(f"{name} is {value!r}; allowed: a number > 0")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
