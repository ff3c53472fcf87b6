"""`attention=auto`: what it stands for, and that composed configs name it."""

from __future__ import annotations

import pytest
import torch

from tokenloom.compose import compose_config
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.testing import AttentionSuite
from tokenloom.testing.paged_pool import Shape
from tokenloom_attention.auto import AutoAttentionConfig
from tokenloom_attention.native_cpu import NativeCpuBackend, NativeCpuConfig
from tokenloom_attention.torch_sdpa import TorchSdpaBackend, TorchSdpaConfig

NATIVE = PluginChoice("attention", "native_cpu", NativeCpuConfig())
TORCH = PluginChoice("attention", "torch_sdpa", TorchSdpaConfig())


class TestAuto(AttentionSuite):
    plugin = "auto"


@pytest.mark.parametrize(
    ("device", "dtype", "wanted"),
    [
        ("cpu", "auto", NATIVE),
        ("cpu", "bfloat16", NATIVE),
        ("cpu", "float32", NATIVE),
        ("cpu", "float16", TORCH),
        ("cuda", "auto", TORCH),
    ],
)
def test_auto_stands_for_what_runs_there(device: str, dtype: str, wanted: PluginChoice) -> None:
    assert AutoAttentionConfig().stands_for(device, dtype) == wanted


@pytest.mark.parametrize(("has_gpu", "wanted"), [(True, TORCH), (False, NATIVE)])
def test_auto_device_is_what_the_machine_has(
    has_gpu: bool, wanted: PluginChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert AutoAttentionConfig().stands_for("auto", "auto") == wanted


def test_auto_without_a_compiler_says_why_it_is_torch_sdpa(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert AutoAttentionConfig().stands_for("cpu", "auto") == TORCH
    said = capsys.readouterr().err
    assert said.startswith("tokenloom: attention=auto is torch_sdpa: there is no C++ compiler")
    assert "Install" in said


def test_auto_builds_what_it_stands_for() -> None:
    assert isinstance(AutoAttentionConfig().build(Shape().context()), NativeCpuBackend)
    assert isinstance(AutoAttentionConfig().build(Shape(dtype=torch.float16).context()), TorchSdpaBackend)


def test_a_composed_config_names_what_auto_stands_for() -> None:
    """Plans, results and checks see the plugin that runs; where its name came from is the file of auto."""
    composed = compose_config(["attention=auto", "model.device=cpu"])
    assert composed.engine.attention == NATIVE
    assert composed.to_dict()["attention"] == {"name": "native_cpu", "kv_dtype": "auto", "kv_scales": "token_head"}
    assert composed.choices["attention"] == "auto"
    assert "auto" in composed.sources["attention.name"]


@pytest.mark.parametrize(("preset", "name"), [("h100_8b", "torch_sdpa"), ("cpu_2core_135m", "native_cpu")])
def test_in_a_simulation_auto_stands_for_what_runs_on_its_device(
    preset: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom_attention.auto.why_not_buildable", lambda: None)
    engine = compose_config(["executor=simulated", f"executor.device={preset}"]).engine
    assert engine.attention.name == name
