"""Times every native operation against torch's, at the shapes of a model, and says how far memory is from its limit.

    python benchmarks/native_ops.py
    python benchmarks/native_ops.py --rows 1 64 --threads 2 --level avx2 --output ops.json

Both run in turn, on as many copies of the operands as exceed the caches, and each copy's best time of several counts;
the figure is the median over copies. GB/s counts the bytes of weights for products and those read and written for all
else. Sizes are those of the default model unless `--hidden`, `--intermediate`, `--heads` and `--vocab` say otherwise.
Products with weights of 4 and 8 bits (`quant=int8_dynamic`, `int4`, `gguf`) stand beside torch's own with such weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from tokenloom.bench.provenance import provenance
from tokenloom.ops.native_ops import native_module
from tokenloom.ops.table import OpTable, build_op_table
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.low_bit import AffineCodes, LowBitProduct
from tokenloom_quant.low_bit.affine_codes import round_to_codes
from tokenloom_quant.low_bit.kernels import load_kernels

_WORKING_SET_BYTES = 128 << 20
_MAX_COPIES = 64
_EPS = 1e-5

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of the model."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one set of operands.

    Attributes:
        name: of the operation, with its shape.
        num_bytes: that it must move.
        make: the call on new operands, for each implementation's operations.
    """

    name: str
    num_bytes: int
    make: Callable[[str, OpTable], Call]


@dataclass(frozen=True, slots=True)
class Figure:
    """The outcome of one case at one number of rows; times in seconds."""

    operation: str
    rows: int
    torch_s: float
    native_s: float
    native_gb_s: float

    @property
    def ratio(self) -> float:
        """How many times faster native is."""
        return self.torch_s / self.native_s


def cases(shapes: Shapes, rows: int) -> Iterator[Case]:
    """Every operation of a decoder layer, and the head."""
    hidden, size = shapes.hidden, shapes.intermediate
    q_size, qkv_heads = shapes.heads * shapes.head_dim, shapes.heads + 2 * shapes.kv_heads
    products = {"q, o": (hidden, q_size), "k, v": (hidden, shapes.kv_heads * shapes.head_dim)}
    products |= {"qkv": (hidden, qkv_heads * shapes.head_dim), "up": (hidden, size), "down": (size, hidden)}
    for name, (k, n) in products.items():
        yield Case(f"linear {name} {k}x{n}", 2 * k * n, _linear(rows, k, n, "apply"))
    yield Case(f"gated linear {hidden}x{2 * size}", 4 * hidden * size, _gated(rows, hidden, size))
    yield Case(
        f"head in fp32 {hidden}x{shapes.vocab}",
        2 * hidden * shapes.vocab,
        _linear(rows, hidden, shapes.vocab, "apply_float32"),
    )
    yield Case(f"add + rms_norm {hidden}", 8 * rows * hidden, _norm(rows, hidden))
    yield Case(f"silu x mul {size}", 6 * rows * size, _activation(rows, size))
    num_rotated = shapes.heads + shapes.kv_heads
    yield Case(
        f"rotary {num_rotated}x{shapes.head_dim}", 4 * rows * num_rotated * shapes.head_dim, _rotary(rows, shapes)
    )


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


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _linear(rows: int, k: int, n: int, method: str) -> Callable[[str, OpTable], Call]:
    def make(_name: str, ops: OpTable) -> Call:
        product = getattr(ops.pack_linear(_random(n, k), None), method)
        x = _random(rows, k)
        return lambda: product(x)

    return make


def _gated(rows: int, k: int, size: int) -> Callable[[str, OpTable], Call]:
    def make(_name: str, ops: OpTable) -> Call:
        packed, x = ops.pack_linear(_random(2 * size, k), None), _random(rows, k)
        return lambda: packed.apply_gated(x, "silu")

    return make


def _int8_dynamic(rows: int, k: int, n: int) -> Callable[[str, OpTable], Call]:
    def make(name: str, _ops: OpTable) -> Call:
        affine, x = round_to_codes(_random(n, k), 8, None, symmetric=True), _random(rows, k)
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


def _int4(rows: int, k: int, n: int, group_size: int, rounds: bool) -> Callable[[str, OpTable], Call]:
    def make(name: str, _ops: OpTable) -> Call:
        affine, x = round_to_codes(_random(n, k), 4, group_size, symmetric=False), _random(rows, k)
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


def _norm(rows: int, size: int) -> Callable[[str, OpTable], Call]:
    def make(_name: str, ops: OpTable) -> Call:
        x, residual, weight = 1e-3 * _random(rows, size), _random(rows, size), _random(size)
        return lambda: ops.add_rms_norm(x, residual, weight, _EPS)

    return make


def _activation(rows: int, size: int) -> Callable[[str, OpTable], Call]:
    def make(_name: str, ops: OpTable) -> Call:
        gate_up = _random(rows, 2 * size)
        return lambda: ops.silu_and_mul(gate_up)

    return make


def _rotary(rows: int, shapes: Shapes) -> Callable[[str, OpTable], Call]:
    def make(_name: str, ops: OpTable) -> Call:
        heads = _random(rows, shapes.heads + 2 * shapes.kv_heads, shapes.head_dim)[:, : shapes.heads + shapes.kv_heads]
        cos, sin = _random(rows, 1, shapes.head_dim), _random(rows, 1, shapes.head_dim)
        return lambda: ops.rotary(heads, cos, sin)

    return make


def measure(case: Case, rows: int, rounds: int, tables: dict[str, OpTable]) -> Figure:
    """Times one case with both implementations, round by round."""
    copies = max(1, min(_MAX_COPIES, _WORKING_SET_BYTES // case.num_bytes))
    calls = {name: [case.make(name, ops) for _ in range(copies)] for name, ops in tables.items()}
    best = {name: [float("inf")] * copies for name in calls}
    for _ in range(rounds):
        for name, own in calls.items():
            for number, call in enumerate(own):
                started = time.perf_counter()
                call()
                best[name][number] = min(best[name][number], time.perf_counter() - started)
    torch_s, native_s = median(best["torch"]), median(best["native"])
    return Figure(case.name, rows, torch_s, native_s, case.num_bytes / native_s / 1e9)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs all cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--level", help="portable, avx2, avx512 or amx; the best that the processor has if not given")
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--intermediate", type=int, default=1536)
    parser.add_argument("--heads", type=int, nargs=3, default=(9, 3, 64), metavar=("QUERIES", "KEYS", "SIZE"))
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--output", help="file for the figures as JSON")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    module = native_module()
    if args.level is not None and not (module.set_isa(args.level) and load_kernels().set_isa(args.level)):
        parser.error(f"--level {args.level}: this processor has {module.isa()} at most")
    tables = {name: build_op_table(torch.device("cpu"), name) for name in ("torch", "native")}
    heads, kv_heads, head_dim = args.heads
    shapes = Shapes(args.hidden, args.intermediate, heads, kv_heads, head_dim, args.vocab)
    print(f"native level {module.isa()}, {args.threads} threads; microseconds")
    print(f"{'operation':<32}{'rows':>6}{'torch':>12}{'native':>12}{'ratio':>8}{'GB/s':>8}")
    figures: list[Figure] = []
    with torch.inference_mode():
        for rows in args.rows:
            for case in (*cases(shapes, rows), *low_bit_cases(shapes, rows)):
                figure = measure(case, rows, args.rounds, tables)
                figures.append(figure)
                times = f"{1e6 * figure.torch_s:>12.1f}{1e6 * figure.native_s:>12.1f}"
                print(f"{case.name:<32}{rows:>6}{times}{figure.ratio:>8.2f}{figure.native_gb_s:>8.1f}", flush=True)
    if args.output is not None:
        record: dict[str, Any] = {"level": module.isa(), "threads": args.threads, "shapes": asdict(shapes)}
        record |= {"figures": [{**asdict(figure), "ratio": figure.ratio} for figure in figures]}
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump({**record, "provenance": provenance()}, file, indent=1)


if __name__ == "__main__":
    main()
