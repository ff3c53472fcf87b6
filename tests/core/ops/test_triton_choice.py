"""When `engine.operations` takes Triton's, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from tokenloom.engine_config import EngineSettings
from tokenloom.errors import CapabilityError
from tokenloom.executors.device_choice import choose_ops
from tokenloom.ops.sampling_table import TORCH_SAMPLING, build_sampling_ops

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TRITON = EngineSettings(operations="triton")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_auto_is_triton_on_cuda_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    assert choose_ops(EngineSettings(), CUDA, dtype) == "triton"
    assert choose_ops(TRITON, CUDA, dtype) == "triton"
    assert choose_ops(EngineSettings(operations="torch"), CUDA, dtype) == "torch"
    monkeypatch.setattr("tokenloom.executors.device_choice.can_import", lambda _: False)
    assert choose_ops(EngineSettings(), CUDA, dtype) == "torch"


def test_auto_is_never_triton_on_a_cpu() -> None:
    assert choose_ops(EngineSettings(), CPU, torch.float32) == "torch"
    assert choose_ops(EngineSettings(), CPU, torch.bfloat16) != "triton"


def test_triton_on_a_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_ops(TRITON, CPU, torch.float32) == "triton"
    monkeypatch.setattr("tokenloom.ops.triton_layers.is_interpreted", lambda: False)
    with pytest.raises(CapabilityError, match=r"=triton runs on cuda, got cpu; try engine\.operations=auto"):
        choose_ops(TRITON, CPU, torch.float32)


def test_the_interpreter_is_not_taken_for_bfloat16() -> None:
    with pytest.raises(CapabilityError, match=r"got bfloat16.*try model\.dtype=float32"):
        choose_ops(TRITON, CPU, torch.bfloat16)


def test_triton_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.executors.device_choice.can_import", lambda _: False)
    with pytest.raises(CapabilityError, match=r"=triton needs triton, which is not installed; try engine\.operations"):
        choose_ops(TRITON, CUDA, torch.bfloat16)


def test_sampling_goes_with_the_operations() -> None:
    assert build_sampling_ops("torch") is TORCH_SAMPLING
    native = build_sampling_ops("native")
    assert native.verify_chain is TORCH_SAMPLING.verify_chain
    assert native.choose_tokens is not TORCH_SAMPLING.choose_tokens
    assert build_sampling_ops("triton").choose_tokens is not TORCH_SAMPLING.choose_tokens
