"""fedlib: the methods, the federation and the experiments behind the paper companion."""

import os

# Idle OpenMP threads that spin cost four times the CPU beside other work; the policy is read once, when
# torch is first imported, so it has to be set here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
