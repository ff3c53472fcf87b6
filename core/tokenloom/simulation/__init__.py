"""Simulation: traces and generated load, replayed through the real engine under a virtual clock, and the report."""
