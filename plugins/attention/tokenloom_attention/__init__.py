"""Built-in attention plugins. Importing this package declares them; torch comes with the plugin that is used."""

from __future__ import annotations

from dataclasses import replace

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.plugins import hookimpl
from tokenloom_attention.triton_capabilities import triton_capabilities

__all__ = ["tokenloom_plugins"]

_IN_PYTORCH = Capabilities(
    devices=("cpu", "cuda"),
    dtypes=("float32", "bfloat16", "float16"),
    # Libraries for GPUs choose the order of a sum by the shape of the whole product.
    flags=frozenset({"sliding_window", "soft_cap", "tree_mask", "sinks", "deterministic@cpu"}),
)


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the attention backends of this package."""
    return [
        PluginInfo(
            kind="attention",
            name="auto",
            config="tokenloom_attention.auto:AutoAttentionConfig",
            contract=(1, 1),
            summary="native_cpu on a CPU where it can be compiled, else torch_sdpa; the plan names which.",
            capabilities=replace(_IN_PYTORCH, flags=_IN_PYTORCH.flags - {"sinks"}),  # native_cpu has none
        ),
        PluginInfo(
            kind="attention",
            name="torch_sdpa",
            config="tokenloom_attention.torch_sdpa:TorchSdpaConfig",
            contract=(1, 1),
            summary="Paged attention in plain PyTorch (batched products and SDPA); runs everywhere.",
            capabilities=_IN_PYTORCH,
        ),
        PluginInfo(
            kind="attention",
            name="naive",
            config="tokenloom_attention.naive:NaiveConfig",
            contract=(1, 1),
            summary="Paged attention with all scores in memory, in plain PyTorch; to read and to compare with.",
            capabilities=replace(_IN_PYTORCH, flags=_IN_PYTORCH.flags | {"whole_scores"}),
        ),
        PluginInfo(
            kind="attention",
            name="native_cpu",
            config="tokenloom_attention.native_cpu:NativeCpuConfig",
            contract=(1, 1),
            summary="Paged attention in C++ for the CPU (AVX-512, AVX2 or portable); compiled on first use.",
            capabilities=Capabilities(
                devices=("cpu",),
                dtypes=("float32", "bfloat16"),
                flags=frozenset({"sliding_window", "soft_cap", "tree_mask", "deterministic"}),
            ),
        ),
        PluginInfo(
            kind="attention",
            name="triton_paged",
            config="tokenloom_attention.triton_paged:TritonPagedConfig",
            contract=(1, 1),
            summary="Paged attention in Triton for GPUs: every kind of step in one launch, split over long sequences.",
            capabilities=triton_capabilities(),
        ),
        PluginInfo(
            kind="attention",
            name="triton_flash",
            config="tokenloom_attention.triton_flash:TritonFlashConfig",
            contract=(1, 1),
            summary="Attention in Triton for GPUs: new prompts over contiguous keys, all else as triton_paged.",
            capabilities=triton_capabilities(),
        ),
    ]
