"""Trains drafter heads for a model on what the model itself says: its own questions, its own answers."""
