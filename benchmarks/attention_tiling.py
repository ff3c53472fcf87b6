"""Naive attention beside a tiled one, over the length of a prompt: bytes moved, memory, time, and that both are right.

    OMP_NUM_THREADS=2 python benchmarks/attention_tiling.py
    python benchmarks/attention_tiling.py --tiled native_cpu --lengths 512 2048 8192 --output tiling.json

One prompt of N tokens, one layer. Bytes are counted by formula, for a cache too small to hold scores: both read Q and
write O once. Naive reads K and V once, and writes and reads N x N fp32 scores and as many weights for each head. Tiled
keeps scores in the cache, and reads K and V up to the diagonal once for each tile of `--tile-rows` positions (the query
heads of a KV head share the tile). Memory is the process's peak above what it held before, tensors and scratch; time is
the fastest of `--rounds`. Tiling changes no answer: both are compared with fp64.

Source: Dao et al., FlashAttention (2022), section 3.2 for the count; Dao, FlashAttention-2 (2023).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tokenloom.bench.provenance import provenance
from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom.plugins import default_registry

__all__ = ["Figure", "Shapes", "main", "measure", "naive_bytes", "tiled_bytes"]

_BLOCK_SIZE = 16
_REFERENCE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Shapes:
    """Heads of the layer, and the bytes of an element of Q, K, V and O."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    item_bytes: int


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


def naive_bytes(length: int, shapes: Shapes) -> int:
    """Bytes that naive attention moves for a prompt."""
    scores = 4 * shapes.num_heads * length * length
    return _ends_bytes(length, shapes) + _pair_bytes(shapes) * length + 4 * scores


def tiled_bytes(length: int, shapes: Shapes, tile_rows: int) -> int:
    """Bytes that tiled attention moves for a prompt, in tiles of `tile_rows` query positions."""
    seen = sum(min(length, first + tile_rows) for first in range(0, length, tile_rows))
    return _ends_bytes(length, shapes) + _pair_bytes(shapes) * seen


def _ends_bytes(length: int, shapes: Shapes) -> int:
    """Q read and O written once."""
    return 2 * length * shapes.num_heads * shapes.head_dim * shapes.item_bytes


def _pair_bytes(shapes: Shapes) -> int:
    """One token's K and V."""
    return 2 * shapes.num_kv_heads * shapes.head_dim * shapes.item_bytes


def measure(args: argparse.Namespace, length: int) -> Iterator[Figure]:
    """Runs both implementations on one random prompt; naive comes first."""
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    num_heads, num_kv_heads, head_dim = args.heads
    shapes = Shapes(num_heads, num_kv_heads, head_dim, dtype.itemsize)
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
        moved = naive_bytes(length, shapes) if name == "naive" else tiled_bytes(length, shapes, args.tile_rows)
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
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = step()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before, out
    clear, libc = Path("/proc/self/clear_refs"), ctypes.CDLL(None)
    if not clear.exists() or not hasattr(libc, "malloc_trim"):
        return None, step()
    libc.malloc_trim(0)  # what earlier calls freed is no longer resident
    clear.write_text("5")  # the highest mark becomes what is resident now
    before = _status_bytes("VmRSS")
    out = step()
    return _status_bytes("VmHWM") - before, out


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


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
    parser.add_argument("--tile-rows", type=int, default=64, help="query positions of a tile, for the formula")
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
