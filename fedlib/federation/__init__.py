"""The federation: round loop, clients, masks, messages, engines. Methods build on it in ``fedlib.methods``."""
