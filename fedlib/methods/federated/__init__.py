"""Methods that aim at one model, or one model each, for clients with different data."""
