"""Milliseconds that attention takes in one step of the default model's shape, by rows, new tokens and context.

    OMP_NUM_THREADS=2 python benchmarks/attention_step.py [KEY=VALUE ...] --layers 30 --dtype bfloat16

A step is `prepare` once, then `write_kv` and `forward` of every layer. Several steps run; the figure of a step is the
sum of each layer's fastest time, which leaves out what other programs of the machine take. Contexts are ragged: the
sequences of a case are 0.75 to 1.25 times the stated length.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom.ops.huge_pages import zeroed_memory
from tokenloom.plugins import default_registry

CASES = ((64, 1, 256), (16, 1, 256), (1, 1, 256), (64, 1, 1024), (1, 1, 8192), (64, 4, 256), (1, 160, 160))
"""(rows, new tokens of each, context) of the cases that run by default."""


def make_batch(rows: int, query_len: int, context: int, block_size: int) -> AttentionBatch:
    """A step of `rows` requests in scattered blocks; query_len == context means whole prompts."""
    shuffle = random.Random(0)
    spread = [0] if query_len == context else range(-context // 4, context // 4 + 1)
    seq_lens = [max(query_len, context + shuffle.choice(spread)) for _ in range(rows)]
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    ids = list(range(1, sum(counts) + 1))
    shuffle.shuffle(ids)
    table = torch.zeros(rows, max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([ids.pop() for _ in range(count)])
    positions = torch.cat([torch.arange(seq_len - query_len, seq_len) for seq_len in seq_lens])
    requests = torch.arange(rows).repeat_interleave(query_len)
    slots = table[requests, positions // block_size].long() * block_size + positions % block_size
    return AttentionBatch(
        cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32) * query_len,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        positions=positions,
        block_table=table,
        slot_mapping=slots,
        tree_mask=None,
        query_lens_cpu=[query_len] * rows,
        seq_lens_cpu=seq_lens,
    )


def measure(args: argparse.Namespace, rows: int, query_len: int, context: int) -> tuple[float, float]:
    """Returns (ms of `prepare`, ms of the whole step)."""
    batch = make_batch(rows, query_len, context, args.block_size)
    dtype = getattr(torch, args.dtype)
    facts = AttentionContext(
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_dim=args.head_dim,
        block_size=args.block_size,
        dtype=dtype,
        device=torch.device("cpu"),
        max_num_seqs=rows,
        max_num_batched_tokens=batch.num_tokens,
        max_model_len=max(batch.seq_lens_cpu),
        deterministic=args.deterministic,
    )
    config_class = default_registry().load_config_class("attention", args.attention)
    backend: AttentionBackend = config_class(**dict(each.split("=", 1) for each in args.settings)).build(facts)
    spec = backend.kv_cache_spec(int(batch.block_table.max()) + 1)
    caches = [
        [filled(shape, kind) for shape, kind in zip(spec.shapes, spec.dtypes, strict=True)] for _ in range(args.layers)
    ]
    query = torch.randn(batch.num_tokens, args.num_heads, args.head_dim).to(dtype)
    key, value = torch.randn(2, batch.num_tokens, args.num_kv_heads, args.head_dim).to(dtype)
    prepare_s: list[float] = []
    layers_s = [float("inf")] * args.layers
    for _ in range(args.repeats):
        start = time.perf_counter()
        metadata = backend.prepare(batch)
        prepare_s.append(time.perf_counter() - start)
        for index, kv in enumerate(caches):
            layer = AttentionLayer(index, 0, args.head_dim**-0.5, window=args.window, soft_cap=args.soft_cap)
            start = time.perf_counter()
            backend.write_kv(kv, key, value, metadata)
            backend.forward(query, kv, layer, metadata)
            layers_s[index] = min(layers_s[index], time.perf_counter() - start)
    return min(prepare_s) * 1e3, (min(prepare_s) + sum(layers_s)) * 1e3


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What a cache may hold, in pages as the engine's: codes of int8, their scales in float32, else keys and values."""
    memory = zeroed_memory(torch.Size(shape).numel() * dtype.itemsize).view(dtype).view(shape)
    if dtype == torch.int8:
        return memory.random_(-127, 128)
    return memory.copy_(torch.rand(shape) / 64 if len(shape) == 3 else torch.randn(shape))


def main() -> None:
    """Parses the command line and prints one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of the plugin, e.g. kv_dtype=int8")
    parser.add_argument("--attention", default="torch_sdpa")
    parser.add_argument("--case", nargs=3, type=int, action="append", metavar=("ROWS", "NEW", "CONTEXT"))
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--num-heads", type=int, default=9)
    parser.add_argument("--num-kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--window", type=int)
    parser.add_argument("--soft-cap", type=float)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    print(f"attention={args.attention} dtype={args.dtype} layers={args.layers} threads={torch.get_num_threads()}")
    print(f"{'rows':>5} {'new':>5} {'context':>8} {'prepare ms':>11} {'step ms':>9}")
    with torch.inference_mode():
        for rows, query_len, context in args.case or CASES:
            prepare_ms, step_ms = measure(args, rows, query_len, context)
            print(f"{rows:>5} {query_len:>5} {context:>8} {prepare_ms:>11.2f} {step_ms:>9.2f}")


if __name__ == "__main__":
    main()
