"""Products with weights of 4 and 8 bits beside torch's own with such weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from native_op_case import Call, Case, Make, Shapes, random_bfloat16

from tokenloom.ops.table import OpTable
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.low_bit import AffineCodes, LowBitProduct
from tokenloom_quant.low_bit.affine_codes import round_to_codes

__all__ = ["low_bit_cases"]


def low_bit_cases(shapes: Shapes, rows: int) -> Iterator[Case]:
    """The largest products of a decoder layer, with weights of 4 and 8 bits."""
    hidden, size = shapes.hidden, shapes.intermediate
    for name, (k, n) in {"gate, up": (hidden, 2 * size), "down": (size, hidden)}.items():
        yield Case(f"int8_dynamic {name} {k}x{n}", k * n, _int8_dynamic(rows, k, n))
        for group_size, rounds in ((64, False), (64, True), (32, False), (32, True)):
            activations = "int8" if rounds else "bf16"
            num_bytes = k * n // 2 + 4 * k * n // group_size
            yield Case(
                f"int4/{group_size} {activations} {name} {k}x{n}", num_bytes, _int4(rows, k, n, group_size, rounds)
            )


def _int8_dynamic(rows: int, k: int, n: int) -> Make:
    def make(name: str, _ops: OpTable) -> Call:
        affine, x = round_to_codes(random_bfloat16(n, k), 8, None, symmetric=True), random_bfloat16(rows, k)
        if name == "native":
            product = LowBitProduct(affine, None, rounds_activations=True, memory=WeightMemory())
            return lambda: product.apply(x)
        weight = torch.ops.onednn.qlinear_prepack((affine.codes ^ 128).view(torch.int8), list(x.shape))
        scale, zeros = affine.scale.float().squeeze(1), torch.zeros(n, dtype=torch.int32)

        def quantized_product() -> torch.Tensor:
            # torch's has one scale for all rows in the product, so that of each row comes behind it.
            x_scale = x.abs().amax(dim=1, keepdim=True) / 127
            codes = (x / x_scale).round().to(torch.int8)
            plain: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
                codes, 1.0, 0, weight, scale, zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
            )
            return plain.mul_(x_scale)

        return quantized_product

    return make


def _int4(rows: int, k: int, n: int, group_size: int, rounds: bool) -> Make:
    def make(name: str, _ops: OpTable) -> Call:
        affine, x = round_to_codes(random_bfloat16(n, k), 4, group_size, symmetric=False), random_bfloat16(rows, k)
        if name == "native":
            product = LowBitProduct(affine, None, rounds_activations=rounds, memory=WeightMemory())
            return lambda: product.apply(x)
        weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(affine.codes.int(), 2)
        pairs = _scales_and_zeros(affine)
        return lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, group_size, pairs)

    return make


def _scales_and_zeros(affine: AffineCodes) -> torch.Tensor:
    """[G, N, 2] as torch's product takes them: (code - 8) * first + second."""
    assert affine.minimum is not None, "these codes have minima"
    scale, minimum = affine.scale.float(), affine.minimum.float()
    return torch.stack((scale, minimum + 8 * scale), dim=-1).transpose(0, 1).to(torch.bfloat16).contiguous()
