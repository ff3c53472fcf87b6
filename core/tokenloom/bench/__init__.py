"""Benchmarks of a running engine: workloads, percentiles, and where a result came from."""
