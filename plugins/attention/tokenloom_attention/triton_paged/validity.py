"""What the Triton backends refuse, each reason with what to try."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenloom.interfaces.attention import AttentionContext
from tokenloom.ops.triton_card import architecture_of, has_e4m3
from tokenloom_attention.triton_capabilities import HEAD_DIMS
from tokenloom_attention.triton_paged.kernels import is_interpreted
from tokenloom_attention.triton_paged.tuning import ARCHITECTURES

__all__ = ["reasons_against"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reasons_against(name: str, context: AttentionContext, kv_dtype: str) -> list[str]:
    """Every reason why attention=`name` cannot be built for a context; empty if it can."""
    reasons = list(_against_device(name, context, kv_dtype))
    if context.num_heads % context.num_kv_heads:
        reasons.append(
            f"attention={name} needs num_heads to be a multiple of num_kv_heads, got {context.num_heads} and "
            f"{context.num_kv_heads}; check the model's config"
        )
    if context.dtype not in DTYPES:
        reasons.append(
            f"attention={name} needs a dtype in (float32, bfloat16, float16), got {context.dtype}; "
            "try model.dtype=bfloat16"
        )
    if context.deterministic and context.dtype != torch.float32:
        reasons.append(
            f"attention={name} does not promise the same bits in every batch, got engine.deterministic=true in "
            f"{context.dtype}; try engine.deterministic=false, or attention=torch_sdpa on the cpu"
        )
    if context.head_dim not in HEAD_DIMS:
        listed = ", ".join(map(str, HEAD_DIMS))
        reasons.append(
            f"attention={name} needs head_dim in ({listed}), got {context.head_dim}; try attention=torch_sdpa"
        )
    return reasons


def _against_device(name: str, context: AttentionContext, kv_dtype: str) -> Iterator[str]:
    device = context.device
    if device.type == "cpu" and is_interpreted():
        if context.dtype == torch.bfloat16:
            yield (
                f"attention={name} has no bfloat16 in Triton's interpreter, which adds its bits as integers; try "
                "model.dtype=float32"
            )
        return
    if device.type != "cuda":
        yield (
            f"attention={name} runs on cuda, got {device}; try attention=auto, attention=native_cpu or "
            "attention=torch_sdpa (for tests, TRITON_INTERPRET=1 before the start lets Triton interpret it on the cpu)"
        )
        return
    architecture = architecture_of(device)
    if architecture not in ARCHITECTURES:
        listed = ", ".join(ARCHITECTURES)
        yield f"attention={name} needs a GPU in ({listed}), got {architecture}; try attention=torch_sdpa"
    elif kv_dtype == "fp8_e4m3" and not has_e4m3(architecture):
        yield (
            f"attention.kv_dtype=fp8_e4m3 needs a GPU with e4m3, from compute capability 8.9 on, got {architecture}; "
            "try attention.kv_dtype=int8"
        )
