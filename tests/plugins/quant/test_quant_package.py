"""What the package of built-in quantizers declares, and the quantizer that quantizes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tokenloom_quant
from tokenloom.capability_check import capability_check
from tokenloom.compose import compose_config
from tokenloom.interfaces.executor import ModelTraits
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext, Shard
from tokenloom.plugins import Registry, default_registry
from tokenloom_quant.none import NoneConfig


def test_package_declares_plugins_whose_config_classes_exist() -> None:
    registry = Registry.from_modules([tokenloom_quant])
    assert registry.names("quant") == (
        "auto",
        "awq",
        "bitsandbytes",
        "compressed_tensors",
        "fp8",
        "gguf",
        "gptq",
        "int4",
        "int8",
        "int8_dynamic",
        "none",
    )
    assert registry.load_config_class("quant", "none") is NoneConfig
    assert registry.load_config_class("quant", "int8").__name__ == "Int8Config"
    assert registry.load_config_class("quant", "int8_dynamic").__name__ == "Int8DynamicConfig"
    assert registry.load_config_class("quant", "int4").__name__ == "Int4Config"
    assert registry.load_config_class("quant", "gguf").__name__ == "GGUFConfig"
    for name in ("awq", "bitsandbytes", "compressed_tensors", "fp8", "gptq"):
        assert issubclass(registry.load_config_class("quant", name), QuantConfig)


def test_package_imports_without_torch() -> None:
    code = "import sys, tokenloom_quant; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["int4", "int8_dynamic", "gguf"])
def test_what_runs_on_cpus_alone_is_refused_elsewhere_by_name(name: str) -> None:
    config = compose_config([f"quant={name}"]).engine
    on_cuda = ModelTraits(head_dim=64, has_window=False, has_soft_cap=False, device="cuda", dtype="bfloat16")
    reasons = capability_check(config, default_registry(), traits=on_cuda)
    (reason,) = [each for each in reasons if each.startswith(f"quant={name} ")]
    assert reason == f"quant={name} needs device in (cpu), got cuda; try quant=int8 or quant=none"


def test_none_covers_nothing() -> None:
    quantizer = NoneConfig().build(QuantContext(torch.float32, torch.device("cpu")))
    spec = LayerSpec("model.embed_tokens", "embedding", 8, 16, (Shard("embed_tokens", 16),))
    assert not quantizer.covers(spec)
    assert quantizer.fingerprint == "none"
    with pytest.raises(AssertionError, match="covers nothing"):
        quantizer.create_linear(spec)
    with pytest.raises(AssertionError, match="covers nothing"):
        quantizer.create_embedding(spec)
