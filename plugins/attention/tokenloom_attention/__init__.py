"""Built-in attention plugins. Importing this package declares them; torch comes with the plugin that is used."""

from __future__ import annotations

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the attention backends of this package."""
    return [
        PluginInfo(
            kind="attention",
            name="torch_sdpa",
            config="tokenloom_attention.torch_sdpa:TorchSdpaConfig",
            contract=(1, 0),
            summary="Paged attention in plain PyTorch (batched products and SDPA); runs everywhere.",
            capabilities=Capabilities(
                devices=("cpu", "cuda"),
                dtypes=("float32", "bfloat16", "float16"),
                flags=frozenset({"sliding_window", "soft_cap", "tree_mask", "deterministic"}),
            ),
        )
    ]
