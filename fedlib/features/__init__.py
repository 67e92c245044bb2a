"""Statistics of features and the readouts that need nothing else: pure functions of tensors."""
