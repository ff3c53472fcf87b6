"""What the attention package declares, and what it refuses to build."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

import tokenloom_attention
from tokenloom.errors import CapabilityError
from tokenloom.interfaces.attention import CONTRACT_VERSION, AttentionBackend
from tokenloom.plugins import Registry
from tokenloom.testing.paged_pool import Shape
from tokenloom_attention.native_cpu import NativeCpuBackend, NativeCpuConfig
from tokenloom_attention.torch_sdpa import TorchSdpaBackend, TorchSdpaConfig


def test_declaring_the_plugins_imports_no_torch() -> None:
    code = "import sys, tokenloom_attention as t; t.tokenloom_plugins(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_torch_sdpa_is_found_and_builds_a_backend() -> None:
    registry = Registry.from_modules([tokenloom_attention])
    info = registry.get("attention", "torch_sdpa").info
    assert info.contract == CONTRACT_VERSION
    assert info.capabilities.flags >= {"sliding_window", "soft_cap", "tree_mask"}
    config_class = registry.load_config_class("attention", "torch_sdpa")
    assert config_class is TorchSdpaConfig
    backend = config_class().build(Shape().context())
    assert isinstance(backend, TorchSdpaBackend)
    assert isinstance(backend, AttentionBackend)


def test_native_cpu_is_found_and_builds_a_backend() -> None:
    registry = Registry.from_modules([tokenloom_attention])
    info = registry.get("attention", "native_cpu").info
    assert info.contract == CONTRACT_VERSION
    assert info.capabilities.devices == ("cpu",)
    config_class = registry.load_config_class("attention", "native_cpu")
    assert config_class is NativeCpuConfig
    assert isinstance(config_class().build(Shape().context()), NativeCpuBackend)


def test_config_refuses_tiles_too_small_to_work() -> None:
    with pytest.raises(ValidationError, match="tile_kib"):
        TorchSdpaConfig(tile_kib=0)


def test_build_names_every_reason_against_a_context() -> None:
    context = replace(Shape().context(), num_heads=5, dtype=torch.float64)
    with pytest.raises(CapabilityError) as caught:
        TorchSdpaConfig().build(context)
    assert len(caught.value.reasons) == 2
    assert "got 5 and 2" in caught.value.reasons[0]
    assert "got torch.float64; try model.dtype=bfloat16" in caught.value.reasons[1]
