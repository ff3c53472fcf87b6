"""Fused operations of the models' hot path, chosen once when a model is built."""
