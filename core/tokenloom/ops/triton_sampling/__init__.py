"""Sampling and verification in Triton, for GPUs; what they mean is written down in `tokenloom.sampling`."""

from __future__ import annotations

from tokenloom.ops.triton_sampling.operations import choose_tokens, verify_chain, verify_tree

__all__ = ["choose_tokens", "verify_chain", "verify_tree"]
