"""One-shot federated learning: methods in which every client sends something once, and their references.

Each function takes the clients' models or data, a frozen description of the settings and a seed, and returns a
:class:`fedlib.methods.oneshot.base.Result`: the global model, its history, what was sent, and the settings.
"""
