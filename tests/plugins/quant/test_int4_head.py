"""Where `quant=int4` rounds embedding and head as well, it does to 8 bits."""

from __future__ import annotations

import torch

from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.interfaces.quant import LayerSpec, QuantContext, Shard
from tokenloom_quant.int4 import Int4Config

pytestmark = NEEDS_COMPILER


def test_the_head_has_8_bits_and_layers_have_4() -> None:
    quantizer = Int4Config(include_embedding=True).build(QuantContext(torch.bfloat16, torch.device("cpu")))
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    errors = {}
    for name in ("model.layers.0.mlp.down_proj", "lm_head"):
        layer = quantizer.create_linear(LayerSpec(name, "linear", 96, 64, (Shard("w", 64),)))
        layer.load("w", "weight", weight)
        layer.finalize()
        errors[name] = float((layer.product.rows(torch.arange(64)) - weight).abs().max())
    assert errors["lm_head"] < 0.02
    assert 0.1 < errors["model.layers.0.mlp.down_proj"] < 0.25
