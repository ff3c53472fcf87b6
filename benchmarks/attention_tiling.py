"""Naive attention beside a tiled one, over the length of a prompt: bytes moved, memory, time, and that both are right.

    OMP_NUM_THREADS=2 python benchmarks/attention_tiling.py
    python benchmarks/attention_tiling.py --tiled native_cpu --lengths 512 2048 8192 --output tiling.json

One prompt of N tokens, one layer; `tokenloom experiment experiment=naive_or_tiled` does the same with whole models.
Bytes are counted by the formulas of `tokenloom.bench.attention_traffic`. Memory is the process's peak above what it
held before, tensors and scratch; time is the fastest of `--rounds`. Tiling changes no answer: both are compared with
attention in fp64.

Source: Dao, FlashAttention-2 (2023).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tokenloom.bench.attention_traffic import TILE_ROWS, AttentionShapes, bytes_in_tiles, bytes_with_scores
from tokenloom.bench.peak_memory import PeakMemory
from tokenloom.bench.provenance import provenance
from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom.plugins import default_registry

__all__ = ["Figure", "main", "measure"]

_BLOCK_SIZE = 16
_REFERENCE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Figure:
    """What one implementation took for one length.

    Attributes:
        name: the plugin.
        length: tokens of the prompt.
        moved_bytes: by formula.
        peak_bytes: measured; None where the system does not tell.
        time_s: fastest round.
        error: greatest difference to attention in fp64.
        difference: greatest difference to the naive result; 0 for naive itself.
    """

    name: str
    length: int
    moved_bytes: int
    peak_bytes: int | None
    time_s: float
    error: float
    difference: float


def measure(args: argparse.Namespace, length: int) -> Iterator[Figure]:
    """Runs both implementations on one random prompt; naive comes first."""
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    num_heads, num_kv_heads, head_dim = args.heads
    shapes = AttentionShapes(num_heads, num_kv_heads, head_dim, dtype.itemsize)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(length, heads, head_dim, generator=generator).to(device, dtype)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    exact = _exact(query, key, value)  # fp64 [N, Hq, D]
    naive_out: torch.Tensor | None = None
    for name in ("naive", args.tiled):
        step = _Step(name, query, key, value)
        step()  # whatever happens once only
        peak_bytes, out = _peak(step, device)
        time_s = min(_time(step, device) for _ in range(args.rounds))
        naive_out = out if naive_out is None else naive_out
        moved = bytes_in_tiles(length, length, shapes, args.tile_rows)
        if name == "naive":
            moved = bytes_with_scores(length, length, shapes)
        error, difference = (float((out.double() - other).abs().max()) for other in (exact, naive_out.double()))
        yield Figure(name, length, moved, peak_bytes, time_s, error, difference)


class _Step:
    """`forward` of one layer over a prompt whose keys and values are in the cache."""

    def __init__(self, name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        length, num_heads, head_dim = query.shape
        context = AttentionContext(
            num_heads=num_heads,
            num_kv_heads=key.shape[1],
            head_dim=head_dim,
            block_size=_BLOCK_SIZE,
            dtype=query.dtype,
            device=query.device,
            max_num_seqs=1,
            max_num_batched_tokens=length,
            max_model_len=length,
        )
        self._backend: AttentionBackend = default_registry().load_config_class("attention", name)().build(context)
        num_blocks = 1 + -(-length // _BLOCK_SIZE)
        spec = self._backend.kv_cache_spec(num_blocks)
        self._kv = [
            torch.zeros(shape, dtype=kind, device=query.device) for shape, kind in zip(spec.shapes, spec.dtypes)
        ]
        self._metadata = self._backend.prepare(_prompt(length, num_blocks, query.device))
        self._backend.write_kv(self._kv, key, value, self._metadata)
        self._layer = AttentionLayer(0, 0, head_dim**-0.5)
        self._query = query

    def __call__(self) -> torch.Tensor:
        return self._backend.forward(self._query, self._kv, self._layer, self._metadata)


def _prompt(length: int, num_blocks: int, device: torch.device) -> AttentionBatch:
    positions = torch.arange(length, device=device)
    return AttentionBatch(
        cu_seqlens_q=torch.tensor([0, length], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([length], dtype=torch.int32, device=device),
        positions=positions,
        block_table=torch.arange(1, num_blocks, dtype=torch.int32, device=device)[None],
        slot_mapping=positions + _BLOCK_SIZE,  # block 0 is the null block
        tree_mask=None,
        query_lens_cpu=[length],
        seq_lens_cpu=[length],
    )


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention in fp64, some rows at a time: [N, Hq, D]."""
    length, num_heads, head_dim = query.shape
    group = num_heads // key.shape[1]
    k, v = (t.double().repeat_interleave(group, 1).transpose(0, 1) for t in (key, value))  # [Hq, N, D]
    parts: list[torch.Tensor] = []
    for first in range(0, length, _REFERENCE_ROWS):
        q = query[first : first + _REFERENCE_ROWS].double().transpose(0, 1)  # [Hq, R, D]
        scores = q @ k.transpose(1, 2) * head_dim**-0.5  # [Hq, R, N]
        is_later = (
            torch.arange(length, device=q.device) > torch.arange(first, first + q.shape[1], device=q.device)[:, None]
        )
        parts.append(scores.masked_fill(is_later, float("-inf")).softmax(-1) @ v)
    return torch.cat(parts, 1).transpose(0, 1)


def _time(step: _Step, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - started


def _peak(step: _Step, device: torch.device) -> tuple[int | None, torch.Tensor]:
    """Bytes that a call needed at its worst moment beyond what was held before, its result included; the result."""
    peak = PeakMemory(device)
    out = step()
    return peak.read_bytes(), out


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _line(figure: Figure) -> str:
    peak = "-" if figure.peak_bytes is None else f"{figure.peak_bytes / 2**20:.1f}"
    return (
        f"{figure.length:>8} {figure.name:<13}{figure.moved_bytes / 2**20:>12.1f}{peak:>12}"
        f"{1e3 * figure.time_s:>10.2f}{figure.error:>11.1e}{figure.difference:>11.1e}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line, and prints two lines per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiled", default="torch_sdpa", help="attention plugin to put beside naive")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--heads", type=int, nargs=3, default=(8, 2, 64), metavar=("QUERIES", "KEYS", "SIZE"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tile-rows", type=int, default=TILE_ROWS, help="query positions of a tile, for the formula")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="file for the figures as JSON")
    args = parser.parse_args(argv)
    if args.tiled == "naive":
        parser.error("--tiled naive would compare naive with itself; name another attention plugin")
    print(
        f"heads {args.heads[0]}/{args.heads[1]} of {args.heads[2]}, {args.dtype}, {args.device}, "
        f"{torch.get_num_threads()} threads; tiles of {args.tile_rows} positions in the formula"
    )
    print(f"{'tokens':>8} {'attention':<13}{'moved MiB':>12}{'peak MiB':>12}{'ms':>10}{'error':>11}{'to naive':>11}")
    figures: list[Figure] = []
    with torch.inference_mode():
        for length in args.lengths:
            for figure in measure(args, length):
                figures.append(figure)
                print(_line(figure), flush=True)
    if args.output is not None:
        record = {"heads": list(args.heads), "dtype": args.dtype, "device": args.device, "tile_rows": args.tile_rows}
        figures_json = [asdict(figure) for figure in figures]
        text = json.dumps({**record, "figures": figures_json, "provenance": provenance()}, indent=1)
        Path(args.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
