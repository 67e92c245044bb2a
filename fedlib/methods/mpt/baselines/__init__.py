"""What MPT is compared with, exact: one file for each method that needs one.

The head of FedAvg, the frozen prototype, NCM re-estimation and the oracle are a line each and live in
``fedlib.methods.mpt.trackers``.
"""
