"""FedCKA (Verhoog, Unal and Caesar 2026): CKA between local and global layers decides what a client keeps.

In the order of the paper: ``layers`` (which tensors make a layer), ``activations`` (what a layer gives out),
``scores`` (CKA of each layer), ``selection`` (which layers become personal), ``fedcka`` (the method).
"""
