"""Class counts of the MedMNIST v2 sets that ``cells`` stands in for (Yang et al. 2023).

Each row adds up to the size that the package ``medmnist`` gives for its split, which a test checks. The test row
of OrganAMNIST is not known to us: its images are shared out as those of the training split.
"""

COUNTS: dict[str, dict[str, tuple[int, ...]]] = {
    "blood": {
        "train": (852, 2181, 1085, 2026, 849, 993, 2330, 1643),
        "val": (122, 312, 155, 290, 122, 143, 333, 235),
        "test": (244, 624, 311, 579, 243, 284, 666, 470),
    },
    "derma": {
        "train": (228, 359, 769, 80, 779, 4693, 99),
        "val": (33, 52, 110, 12, 111, 671, 14),
        "test": (66, 103, 220, 23, 223, 1341, 29),
    },
    "oct": {
        "train": (33484, 10213, 7754, 46026),
        "val": (3721, 1135, 862, 5114),
        "test": (250, 250, 250, 250),
    },
    "path": {
        "train": (9366, 9509, 10360, 10401, 8006, 12182, 7886, 9401, 12885),
        "val": (1041, 1057, 1152, 1156, 890, 1354, 877, 1045, 1432),
        "test": (1338, 847, 339, 634, 1035, 592, 741, 421, 1233),
    },
    "organa": {
        "train": (1956, 1390, 1357, 1474, 3963, 3817, 6164, 3919, 3929, 3031, 3561),
        "val": (321, 233, 225, 392, 568, 637, 1033, 1033, 1009, 529, 511),
    },
    "tissue": {
        "train": (53075, 7814, 5866, 15406, 11789, 39203, 24608, 7705),
        "val": (7582, 1117, 838, 2201, 1684, 5601, 3516, 1101),
        "test": (15165, 2233, 1677, 4402, 3369, 11201, 7031, 2202),
    },
}
