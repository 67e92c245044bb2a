"""VCL-FPFT: one-shot federated class-incremental learning by variational feature transfer.

Barros, Orang, Zanon de Castro, Ramos and Guimarães, IJCAI 2026, pp. 6716-6724. What the paper describes and what
its public code does are two algorithms; :mod:`fedlib.methods.vcl.presets` has both.

:mod:`fedlib.methods.vcl.pipeline` runs the protocol in four steps, each of which gives tensors that can be stored:

    train_clients -> client_gaussians -> aggregate -> run_tasks
"""
