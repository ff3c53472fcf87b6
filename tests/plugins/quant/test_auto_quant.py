"""`quant=auto`: the plugin that the checkpoint's settings name, said on stderr; none for plain weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import CheckpointSuite, Tensors, context
from tests.plugins.quant.format_encoders import AWQ_SETTINGS, GPTQ_SETTINGS, ct_settings, encode_awq, int_weights
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.auto import AutoQuantConfig


class TestAutoOfAWQ(CheckpointSuite):
    plugin = "auto"
    checkpoint = AWQ_SETTINGS
    in_multiple = 32
    out_multiple = 8
    max_relative_error = 1.05 / 15

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_awq("", weight)[0]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (AWQ_SETTINGS, "awq"),
        (GPTQ_SETTINGS, "gptq"),
        (ct_settings(int_weights(4, 32)), "compressed_tensors"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    ],
)
def test_auto_is_what_the_checkpoint_says(
    settings: dict[str, Any], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert AutoQuantConfig().build(context(settings)).fingerprint.startswith(f"{wanted}:")
    assert f"quant=auto is {wanted}," in capsys.readouterr().err


def test_auto_is_none_for_plain_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert AutoQuantConfig().build(context({})).fingerprint == "none"
    assert capsys.readouterr().err == ""


def test_methods_that_nobody_reads_are_refused() -> None:
    with pytest.raises(ModelError, match="quant_method='quip', which no plugin here reads; readable are awq, gptq"):
        AutoQuantConfig().build(context({"quant_method": "quip"}))
