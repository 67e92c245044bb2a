"""What MPT is compared with, exact: one file for each method, its mathematics and its tracker.

The head of FedAvg, the frozen prototype, NCM re-estimation and the references are a few lines each: ``plain``.
"""
