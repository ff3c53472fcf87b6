"""The C++ of this plugin: where it lies, and what its module offers to `backend.py`.

    Backend(num_heads, num_kv_heads, head_dim, padded_dim, block_size, pack, is_bf16, is_deterministic)
        .prepare(cu_seqlens_q, seq_lens, positions, block_table, slot_mapping, tree_mask, window) -> Work
        .copy_slots(kv, source, target)
    Work
        .write_kv(kv, key, value)
        .forward(query, kv, softmax_scale, soft_cap) -> [T, Hq, D]      soft_cap 0: none
        .num_keys                                                      keys that a forward reads, for one KV head
    set_isa(name) -> bool, current_isa() -> str                        levels of instructions, for tests

All of them are called with tensors whose shapes and dtypes `backend.py` answers for.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tokenloom.ops.native import load_extension

__all__ = ["load_kernels"]

_CSRC = Path(__file__).parent / "csrc"


def load_kernels() -> ModuleType:
    """The compiled module; compiles it first where that has not been done.

    Raises:
        NativeBuildError: this machine cannot compile it; names what to install, and attention=torch_sdpa.
    """
    return load_extension(
        "tokenloom_attention_native_cpu",
        sources=[_CSRC / "binding.cpp", _CSRC / "plan.cpp", _CSRC / "kv_store.cpp"],
        kernels=[_CSRC / "attend.cpp", _CSRC / "round_head.cpp"],
        include_dirs=[_CSRC],
        instead="attention=torch_sdpa",
    )
