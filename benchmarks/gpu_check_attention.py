"""Speed of attention on a device: decode by bytes, prompts by operations, beside what PyTorch has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from gpu_check_timing import timed
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom_attention.triton_flash import TritonFlashConfig
from tokenloom_attention.triton_paged import TritonPagedConfig
from tokenloom_attention.triton_paged.backend import TritonPagedMetadata

__all__ = ["Heads", "Row", "decode_rows", "flex_rows", "prompt_rows"]

_BLOCK_SIZE = 16
SDPA = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa math": SDPBackend.MATH,
}
MOST_MATH_SCORES = 1 << 30
"""Plain SDPA keeps all scores: not beyond this many."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of the layer: num_heads, num_kv_heads, head_dim."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: `rate` is GB/s of the cache (decode) or TFLOP/s (prompts); None where it could not run, see `note`."""

    case: str
    name: str
    time_s: float | None
    rate: float | None
    note: str = ""


class _Step:
    """One layer of a step: `num_requests` requests of `length` cached tokens each, the last `num_new` of them new."""

    def __init__(
        self,
        backend: AttentionBackend,
        heads: Heads,
        num_requests: int,
        length: int,
        num_new: int,
        device: torch.device,
    ) -> None:
        self._backend = backend
        self._layer = AttentionLayer(0, 0, heads.head_dim**-0.5)
        blocks = -(-length // _BLOCK_SIZE)
        order = torch.randperm(num_requests * blocks, generator=torch.Generator().manual_seed(0)) + 1
        table = order.view(num_requests, blocks).to(device, torch.int32)
        positions = torch.arange(length - num_new, length, device=device).repeat(num_requests)
        request = torch.arange(num_requests, device=device).repeat_interleave(num_new)
        slots = table[request, positions // _BLOCK_SIZE].long() * _BLOCK_SIZE + positions % _BLOCK_SIZE
        batch = AttentionBatch(
            cu_seqlens_q=torch.arange(num_requests + 1, dtype=torch.int32, device=device) * num_new,
            seq_lens=torch.full((num_requests,), length, dtype=torch.int32, device=device),
            positions=positions,
            block_table=table,
            slot_mapping=slots,
            tree_mask=None,
            query_lens_cpu=[num_new] * num_requests,
            seq_lens_cpu=[length] * num_requests,
        )
        spec = backend.kv_cache_spec(num_requests * blocks + 1)
        self._kv = [_random(shape, dtype, device) for shape, dtype in zip(spec.shapes, spec.dtypes)]
        self.metadata = backend.prepare(batch)
        self._query = torch.randn(positions.shape[0], heads.num_heads, heads.head_dim, device=device)
        key, value = torch.randn(2, positions.shape[0], heads.num_kv_heads, heads.head_dim, device=device)
        self._query, key, value = (t.to(backend_dtype(device)) for t in (self._query, key, value))
        backend.write_kv(self._kv, key, value, self.metadata)

    def __call__(self) -> torch.Tensor:
        return self._backend.forward(self._query, self._kv, self._layer, self.metadata)


def backend_dtype(device: torch.device) -> torch.dtype:
    """bfloat16; in the interpreter, which has none, float16."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, device=device)
    if dtype == torch.float32:  # scales
        return torch.full(shape, 0.01, device=device)
    out = torch.empty(shape, dtype=dtype, device=device)
    for part in out.chunk(64):  # a whole cache in fp32 might not fit
        part.copy_(torch.randn(part.shape, device=device))
    return out


def _context(heads: Heads, num_requests: int, length: int, device: torch.device) -> AttentionContext:
    return AttentionContext(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        block_size=_BLOCK_SIZE,
        dtype=backend_dtype(device),
        device=device,
        max_num_seqs=num_requests,
        max_num_batched_tokens=max(num_requests, length),
        max_model_len=length,
    )


def decode_rows(
    device: torch.device,
    heads: Heads,
    num_requests: int,
    length: int,
    kv_dtypes: list[Literal["auto", "int8", "fp8_e4m3"]],
) -> Iterator[Row]:
    """One token for each of `num_requests` requests with `length` tokens: each cache, unsplit, and SDPA's backends."""
    case = f"decode {num_requests} x {length}"
    context = _context(heads, num_requests, length, device)
    for kv_dtype in kv_dtypes:
        backend = TritonPagedConfig(kv_dtype=kv_dtype).build(context)
        step = _Step(backend, heads, num_requests, length, 1, device)
        num_bytes = num_requests * length * backend.kv_cache_spec(1).page_bytes / _BLOCK_SIZE
        own_s = timed(step, device, cold=True)
        yield Row(case, f"triton_paged {kv_dtype}", own_s, num_bytes / own_s / 1e9)
        metadata = step.metadata
        if kv_dtype == "auto" and isinstance(metadata, TritonPagedMetadata) and metadata.plan.num_splits > 1:
            whole = replace(metadata.plan, num_splits=1, split_query_len=0, split_span=0)
            note = f"{metadata.plan.num_splits} splits in the row above"
            step.metadata = replace(metadata, plan=whole)
            own_s = timed(step, device, cold=True)
            yield Row(case, "triton_paged, not split", own_s, num_bytes / own_s / 1e9, note)
        del step
    dtype = backend_dtype(device)
    query = torch.randn(num_requests, heads.num_heads, 1, heads.head_dim, device=device).to(dtype)
    key, value = (_random((num_requests, heads.num_kv_heads, length, heads.head_dim), dtype, device) for _ in range(2))
    num_bytes = 2 * key.nbytes
    for name, time_s, note in _sdpa_times(query, key, value, device, is_causal=False):
        yield Row(case, name, time_s, None if time_s is None else num_bytes / time_s / 1e9, note)


def prompt_rows(device: torch.device, heads: Heads, length: int) -> Iterator[Row]:
    """One causal prompt of `length` tokens: both Triton backends and SDPA's."""
    case = f"prompt {length}, head_dim {heads.head_dim}"
    flop = _prompt_flop(heads, length)
    context = _context(heads, 1, length, device)
    for name, backend in (
        ("triton_flash", TritonFlashConfig().build(context)),
        ("triton_paged", TritonPagedConfig().build(context)),
    ):
        own_s = timed(_Step(backend, heads, 1, length, length, device), device)
        yield Row(case, name, own_s, flop / own_s / 1e12)
    query, key, value = _dense(heads, length, device)
    for name, time_s, note in _sdpa_times(query, key, value, device, is_causal=True):
        yield Row(case, name, time_s, None if time_s is None else flop / time_s / 1e12, note)


def flex_rows(device: torch.device, heads: Heads, length: int) -> Iterator[Row]:
    """The same prompt by PyTorch's flex_attention, compiled for it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case = f"prompt {length}, head_dim {heads.head_dim}"
    query, key, value = _dense(heads, length, device)
    try:
        mask = create_block_mask(_is_seen, None, None, length, length, device=str(device))
        compiled: Any = torch.compile(flex_attention, dynamic=False)
        time_s = timed(lambda: compiled(query, key, value, block_mask=mask, enable_gqa=True), device)
    except Exception as error:  # noqa: BLE001  (another's code; its failure is a figure that is missing)
        yield Row(case, "flex_attention, compiled", None, None, f"{type(error).__name__}: {str(error)[:80]}")
    else:
        yield Row(case, "flex_attention, compiled", time_s, _prompt_flop(heads, length) / time_s / 1e12)


def _is_seen(_b: torch.Tensor, _h: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    return row >= column


def _prompt_flop(heads: Heads, length: int) -> float:
    """Two products over the causal half of all pairs."""
    return 2 * 2 * heads.num_heads * heads.head_dim * length * (length + 1) / 2


def _dense(heads: Heads, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = backend_dtype(device)
    query, key, value = (
        torch.randn(1, count, length, heads.head_dim, device=device).to(dtype)
        for count in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    return query, key, value


def _sdpa_times(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, device: torch.device, *, is_causal: bool
) -> Iterator[tuple[str, float | None, str]]:
    """(name, seconds, why not) of SDPA with each of its backends; keys and values are contiguous, not paged."""
    group = query.shape[1] // key.shape[1]

    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=group > 1)

    for name, backend in SDPA.items():
        if name == "sdpa math" and query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] > MOST_MATH_SCORES:
            yield name, None, "left out: keeps all scores"
            continue
        try:
            with sdpa_kernel([backend]):
                time_s = timed(attend, device, cold=not is_causal)
        except RuntimeError as error:
            yield name, None, str(error).strip().splitlines()[0][:80]
        else:
            yield name, time_s, ""
