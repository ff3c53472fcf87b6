"""Experiments: every combination of a sweep run once, its figures side by side."""
