"""The attention plugin `auto`: a choice between the other ones of this package, made when a config is composed."""

from __future__ import annotations

import sys
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionConfig, AttentionContext
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.ops.native import why_not_buildable
from tokenloom_attention.native_cpu import NativeCpuConfig
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

__all__ = ["AutoAttentionConfig"]


@final
class AutoAttentionConfig(AttentionConfig):
    """Stands for `native_cpu` on a CPU with a C++ compiler, in a dtype that it has; else for `torch_sdpa`."""

    def build(self, context: AttentionContext) -> AttentionBackend:
        """Constructs the chosen backend, for whoever builds from this config without composing."""
        chosen = self._chosen(context.device.type, str(context.dtype).removeprefix("torch."))
        return chosen.build(context)

    def stands_for(self, device: str, dtype: str) -> PluginChoice:
        """The choice, by what the settings and the machine say before a model is opened."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        chosen = self._chosen(device, dtype)
        return PluginChoice("attention", "torch_sdpa" if isinstance(chosen, TorchSdpaConfig) else "native_cpu", chosen)

    def _chosen(self, device: str, dtype: str) -> NativeCpuConfig | TorchSdpaConfig:
        if device != "cpu" or dtype == "float16":
            return TorchSdpaConfig()
        obstacle = why_not_buildable()
        if obstacle is None:
            return NativeCpuConfig()
        print(f"tokenloom: attention=auto is torch_sdpa: {obstacle}", file=sys.stderr, flush=True)
        return TorchSdpaConfig()
