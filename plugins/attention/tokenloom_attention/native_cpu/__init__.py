"""Paged attention in C++ for the CPU."""

from tokenloom_attention.native_cpu.backend import NativeCpuBackend, NativeCpuConfig, NativeCpuMetadata

__all__ = ["NativeCpuBackend", "NativeCpuConfig", "NativeCpuMetadata"]
