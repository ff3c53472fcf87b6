"""What the Triton backends declare, with and without Triton's interpreter."""

from __future__ import annotations

import pytest

import tokenloom_attention
from tokenloom.interfaces.attention import CONTRACT_VERSION
from tokenloom.plugins import Registry
from tokenloom.testing.paged_pool import Shape
from tokenloom_attention.triton_capabilities import triton_capabilities
from tokenloom_attention.triton_flash import TritonFlashBackend, TritonFlashConfig
from tokenloom_attention.triton_paged import TritonPagedBackend, TritonPagedConfig

CLASSES = {
    "triton_paged": (TritonPagedConfig, TritonPagedBackend),
    "triton_flash": (TritonFlashConfig, TritonFlashBackend),
}


@pytest.mark.parametrize("name", CLASSES)
def test_backends_are_found_and_built(name: str) -> None:
    registry = Registry.from_modules([tokenloom_attention])
    info = registry.get("attention", name).info
    assert info.contract == CONTRACT_VERSION
    assert info.capabilities.requires == ("triton",)
    config_class = registry.load_config_class("attention", name)
    wanted_config, wanted_backend = CLASSES[name]
    assert config_class is wanted_config
    assert isinstance(config_class().build(Shape().context()), wanted_backend)


def test_the_cpu_is_declared_for_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = triton_capabilities()
    monkeypatch.delenv("TRITON_INTERPRET")
    compiled = triton_capabilities()
    assert (interpreted.devices, interpreted.dtypes) == (("cuda", "cpu"), ("float32", "float16"))
    assert (compiled.devices, compiled.dtypes) == (("cuda",), ("float32", "bfloat16", "float16"))
    assert interpreted.flags == compiled.flags
