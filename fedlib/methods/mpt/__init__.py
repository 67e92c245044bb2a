"""MPT, missing prototype tracking (Jang et al. 2026), one file for each idea, in the order of the method page.

``options`` (what is left open), ``decomposition`` (departure), ``transport`` and ``low_rank`` (predicted
residual), ``lite`` (scalar correction), ``residual`` (measured residual), ``reliability`` (their weights),
``reconstruction`` (all together), ``tracking`` (vehicles and server of a round, and what a method
answers), ``method`` (MPT and MPT-lite as such methods), ``baselines``, ``trackers`` (the registry of all),
``capabilities``. The readout is ``fedlib.features.ncm``, the statistics are
``fedlib.features.moments``. Letters: d feature length, M remaining classes, P = [mu_c] (d, M) their prototypes,
p the rare prototype. Everything is float64.
"""
