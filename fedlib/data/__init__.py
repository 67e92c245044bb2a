"""Data sets behind one type, their partition over clients, and the step from bytes to tensors."""

from fedlib.data.catalogue import available, card, cards, domains, driving, find, load
from fedlib.data.files import Found
from fedlib.data.imageset import Card, ImageSet, Split
from fedlib.data.partition import Partition
from fedlib.data.tensors import Normalizer

__all__ = [
    "Card",
    "Found",
    "ImageSet",
    "Normalizer",
    "Partition",
    "Split",
    "available",
    "card",
    "cards",
    "domains",
    "driving",
    "find",
    "load",
]
