"""Times every native operation against torch's, at the shapes of a model, and says how far memory is from its limit.

    python benchmarks/native_ops.py
    python benchmarks/native_ops.py --rows 1 64 --threads 2 --level avx2 --output ops.json

Both run in turn, on as many copies of the operands as exceed the caches, and each copy's best time of several counts;
the figure is the median over copies. GB/s counts the bytes of weights for products, of keys and values for attention,
and those read and written for all else. Sizes are those of the default model unless `--hidden`, `--intermediate`,
`--heads` and `--vocab` say otherwise. Products with weights of 4 and 8 bits (`quant=int8_dynamic`, `int4`, `gguf`)
stand beside torch's own with such weights. `--only` picks groups.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from native_attention_cases import attention_cases
from native_dense_cases import dense_cases
from native_low_bit_cases import low_bit_cases
from native_op_case import Case, Figure, Shapes, measure

from tokenloom.bench.provenance import provenance
from tokenloom.ops.native_ops import native_module
from tokenloom.ops.table import build_op_table
from tokenloom_attention.native_cpu.kernels import load_kernels as load_attention
from tokenloom_quant.low_bit.kernels import load_kernels as load_low_bit

_GROUPS = ("dense", "attention", "low_bit")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs all cases and prints a table."""
    args = parse_arguments(argv)
    torch.set_num_threads(args.threads)
    tables = {name: build_op_table(torch.device("cpu"), name) for name in ("torch", "native")}
    heads, kv_heads, head_dim = args.heads
    shapes = Shapes(args.hidden, args.intermediate, heads, kv_heads, head_dim, args.vocab)
    level = native_module().isa()
    print(f"native level {level}, {args.threads} threads; microseconds")
    print(f"{'operation':<38}{'rows':>6}{'torch':>12}{'native':>12}{'ratio':>8}{'GB/s':>8}")
    figures: list[Figure] = []
    with torch.inference_mode():
        for rows, case in all_cases(args, shapes):
            figure = measure(case, rows, args.rounds, tables)
            figures.append(figure)
            times = f"{1e6 * figure.torch_s:>12.1f}{1e6 * figure.native_s:>12.1f}"
            print(f"{case.name:<38}{rows:>6}{times}{figure.ratio:>8.2f}{figure.native_gb_s:>8.1f}", flush=True)
    if args.output is not None:
        record: dict[str, Any] = {"level": level, "threads": args.threads, "shapes": asdict(shapes)}
        record |= {"figures": [{**asdict(figure), "ratio": figure.ratio} for figure in figures]}
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump({**record, "provenance": provenance()}, file, indent=1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=_GROUPS, default=_GROUPS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64], help="of operations in bfloat16")
    parser.add_argument("--low-bit-rows", type=int, nargs="+", default=[1, 8, 32, 64, 512])
    parser.add_argument("--context", type=int, default=256, help="tokens that a row attends to")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--level", help="portable, avx2, avx512 or amx; the best that the processor has if not given")
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--intermediate", type=int, default=1536)
    parser.add_argument("--heads", type=int, nargs=3, default=(9, 3, 64), metavar=("QUERIES", "KEYS", "SIZE"))
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--output", help="file for the figures as JSON")
    args = parser.parse_args(argv)
    modules = [native_module(), *([load_low_bit()] if "low_bit" in args.only else [])]
    modules += [load_attention()] if "attention" in args.only else []
    if args.level is not None and not all(module.set_isa(args.level) for module in modules):
        parser.error(f"--level {args.level}: this processor has {native_module().isa()} at most")
    return args


def all_cases(args: argparse.Namespace, shapes: Shapes) -> Iterator[tuple[int, Case]]:
    """Every case with its number of rows."""
    for rows in args.rows:
        if "dense" in args.only:
            yield from ((rows, case) for case in dense_cases(shapes, rows))
        if "attention" in args.only:
            yield from ((rows, case) for case in attention_cases(shapes, rows, args.context))
    if "low_bit" in args.only:
        for rows in args.low_bit_rows:
            yield from ((rows, case) for case in low_bit_cases(shapes, rows))


if __name__ == "__main__":
    main()
