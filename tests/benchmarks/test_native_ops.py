"""`native_ops.py` runs every operation once, on sizes of a toy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

TOY = ["--hidden", "64", "--intermediate", "64", "--heads", "2", "1", "32", "--vocab", "96", "--context", "20"]


def test_every_native_operation_has_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import native_op_case
    import native_ops

    monkeypatch.setattr(native_op_case, "_MAX_COPIES", 1)
    output, threads = tmp_path / "ops.json", str(torch.get_num_threads())
    native_ops.main(
        ["--rows", "3", "--low-bit-rows", "3", "--rounds", "1", "--threads", threads, "--output", str(output), *TOY]
    )
    figures = json.loads(output.read_text())["figures"]
    names = " ".join(figure["operation"] for figure in figures)
    kinds = ("linear qkv", "linear x silu", "linear x gelu_tanh", "head in fp32", "rms_norm", "add + rms_norm")
    kinds += (
        "head_rms_norm",
        "silu x mul",
        "gelu_tanh x mul",
        "rotary",
        "greedy choice",
        "first 50",
        "int8_dynamic",
        "int4/64",
    )
    for kind in (*kinds, "attention 20 bf16 KV", "attention 20 int8 KV", "write bf16 KV", "write int8 KV"):
        assert kind in names
    assert all(figure["torch_s"] > 0 and figure["native_s"] > 0 for figure in figures)
    assert len(capsys.readouterr().out.splitlines()) == len(figures) + 2
