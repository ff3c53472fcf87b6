"""What folders with quantized weights differ in: settings in files of their own, and tensors below others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.tensor_names import canonical_names


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("quantize_config.json", {"bits": 4, "desc_act": True}, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
        ("quantize_config.json", {"bits": 4, "quant_method": "awq"}, {"quant_method": "awq", "bits": 4}),
        ("quant_config.json", {"w_bit": 4, "version": "GEMM"}, {"quant_method": "awq", "w_bit": 4, "version": "GEMM"}),
        ("quant_config.json", {"something": "else"}, None),
    ],
)
def test_settings_in_a_file_of_their_own_are_read(
    tmp_path: Path, name: str, values: dict[str, Any], wanted: dict[str, Any] | None
) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / name).write_text(json.dumps(values))
    assert open_checkpoint(folder).quantization == wanted


def test_settings_in_config_json_come_first(tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 8}
    folder = write_tiny_llama(tmp_path, extra_config={"quantization_config": settings})
    (folder / "quantize_config.json").write_text('{"bits": 4}')
    assert open_checkpoint(folder).quantization == settings


def test_a_damaged_file_of_settings_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "quantize_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"quantize_config\.json must hold a JSON object"):
        open_checkpoint(folder)


def test_tensors_below_a_weight_become_its_neighbours() -> None:
    """As bitsandbytes names them; the weight itself holds codes then, and plain weights keep their name."""
    stored = [
        "model.embed_tokens.weight",
        "model.layers.0.x_proj.weight",
        "model.layers.0.x_proj.weight.absmax",
        "model.layers.0.x_proj.weight.quant_state.bitsandbytes__nf4",
        "model.layers.0.x_proj.bias",
        "model.layers.0.y_proj.weight",
    ]
    assert canonical_names(stored, "here") == dict(
        zip(
            [
                "model.embed_tokens.weight",
                "model.layers.0.x_proj.weight_codes",
                "model.layers.0.x_proj.weight_absmax",
                "model.layers.0.x_proj.weight_quant_state_bitsandbytes__nf4",
                "model.layers.0.x_proj.bias",
                "model.layers.0.y_proj.weight",
            ],
            stored,
        )
    )
