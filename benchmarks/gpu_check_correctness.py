"""Whether kernels compute on a device what their references say: attention, fused operations, sampling."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import torch

from tokenloom.interfaces.attention import AttentionConfig
from tokenloom.ops import torch_ops
from tokenloom.ops.sampling_table import TORCH_SAMPLING, build_sampling_ops
from tokenloom.ops.table import build_op_table
from tokenloom.sampling.batch import SamplingBatch, SamplingRow
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.attention_cases import mixed_works
from tokenloom.testing.numeric_device import TOLERANCES, check_close
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, random_parents
from tokenloom_attention.naive import NaiveConfig
from tokenloom_attention.triton_flash import TritonFlashConfig
from tokenloom_attention.triton_paged import TritonPagedConfig
from tokenloom_attention.triton_paged.reference import dequantized, quantized

__all__ = [
    "Check",
    "KVDtype",
    "LayerKind",
    "attention_checks",
    "large_cache_check",
    "operation_checks",
    "run_checks",
    "sampling_checks",
]

KVDtype = Literal["auto", "int8", "fp8_e4m3"]
STORED = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
LayerKind = tuple[int | None, float | None]
"""(window, soft cap)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to find out: `run` raises AssertionError or whatever else goes wrong."""

    name: str
    run: Callable[[], None]


def run_checks(checks: Iterator[Check]) -> Iterator[tuple[str, str]]:
    """(name, what went wrong, "" if nothing did) of each check; a failing one does not stop the others."""
    for check in checks:
        try:
            check.run()
        except Exception as error:  # noqa: BLE001  (reported, and counted as a failure)
            yield check.name, f"{type(error).__name__}: {error}"
        else:
            yield check.name, ""


def attention_checks(
    device: torch.device,
    kind: tuple[torch.dtype, int],
    kv_dtypes: list[KVDtype],
    layers: tuple[LayerKind, ...] = ((None, None),),
) -> Iterator[Check]:
    """Every backend with Triton kernels, and naive, on mixed steps of ragged requests in memory full of NaN.

    Args:
        device: where.
        kind: (dtype, head_dim).
        kv_dtypes: of the cache of triton_paged.
        layers: sorts of layers, those with a soft cap with sinks; with more than plain ones, trees are tried as well.
    """
    dtype, head_dim = kind
    shape = Shape(8, 2, head_dim=head_dim, block_size=16, dtype=dtype, device=device)
    configs: dict[str, AttentionConfig] = {"naive": NaiveConfig(), "triton_flash": TritonFlashConfig()}
    configs |= {f"triton_paged {kv_dtype}": TritonPagedConfig(kv_dtype=kv_dtype) for kv_dtype in kv_dtypes}
    for name, config in configs.items():
        yield Check(f"attention {name} {_name(dtype)} head_dim {head_dim}", partial(_attend, config, shape, layers))


def _attend(config: AttentionConfig, shape: Shape, layers: tuple[LayerKind, ...]) -> None:
    stored = STORED.get(getattr(config, "kv_dtype", "auto"))
    as_stored = _unchanged if stored is None else partial(_rounded, stored)
    for window, soft_cap in layers:
        pool = Pool(config.build(shape.context()), shape, 400, as_stored=as_stored)
        sinks = torch.linspace(-2.0, 3.0, shape.num_heads, device=shape.device) if soft_cap is not None else None
        layer = replace(layer_of(shape, window, soft_cap), sinks=sinks)
        pool.check(mixed_works(pool), layer, num_padding=2)
        pool.check([Work(pool.paged(1025, 1024), 1), Work(pool.paged(520, 519), 1)], layer)
        if layers != ((None, None),):
            pool.check([Work(pool.paged(75, 30), 45, random_parents(45, 0)), Work(pool.paged(40, 39), 1)], layer)


def _unchanged(tokens: torch.Tensor) -> torch.Tensor:
    return tokens


def _rounded(stored: torch.dtype, tokens: torch.Tensor) -> torch.Tensor:
    return dequantized(*quantized(tokens, stored))


def large_cache_check(device: torch.device, num_elements: int, kv_dtype: KVDtype = "auto") -> Check:
    """Requests whose blocks lie behind `num_elements` elements of the cache, where 32-bit offsets do not reach."""
    shape = Shape(32, 8, head_dim=128, block_size=16, dtype=torch.float16, device=device)
    stored = STORED.get(kv_dtype)

    def run() -> None:
        num_blocks = num_elements // (2 * 8 * 16 * 128) + 40
        as_stored = _unchanged if stored is None else partial(_rounded, stored)
        pool = Pool(TritonPagedConfig(kv_dtype=kv_dtype).build(shape.context()), shape, num_blocks, as_stored=as_stored)
        works = []
        for index, (length, cached) in enumerate(((40, 0), (150, 149), (90, 60))):
            paged = pool.paged(length)
            paged.blocks = [num_blocks - 1 - 12 * index - block for block in range(-(-length // 16))]
            if cached:
                pool.write([Work(paged, cached)])
                paged.num_computed = cached
            works.append(Work(paged, length - cached))
        pool.check(works, layer_of(shape))

    return Check(f"attention triton_paged {kv_dtype}, cache of {num_elements} elements and more", run)


def operation_checks(device: torch.device, dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Check]:
    """Norms, rotary embedding and activations against the torch versions in fp64."""
    for dtype in dtypes:
        for size in sizes:
            yield Check(f"operations {_name(dtype)} {size}", partial(_operate, device, dtype, size))


def _operate(device: torch.device, dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)

    def random_rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    ops = build_op_table(device, "triton")
    tolerance = TOLERANCES[dtype]
    for num_rows in (1, 17):
        x, residual, weight = random_rows(num_rows, size), random_rows(num_rows, size), random_rows(size)
        total = x + residual
        normed, kept = ops.add_rms_norm(x, residual, weight, 1e-5)
        assert torch.equal(kept, total), "add_rms_norm keeps another sum"
        check_close(normed, torch_ops.rms_norm(total.double(), weight.double(), 1e-5), tolerance, "add_rms_norm")
        check_close(
            ops.rms_norm(x, weight, 1e-5), torch_ops.rms_norm(x.double(), weight.double(), 1e-5), tolerance, "rms_norm"
        )
        for name in ("silu_and_mul", "gelu_tanh_and_mul"):
            gates = random_rows(num_rows, 2 * size)
            check_close(getattr(ops, name)(gates), getattr(torch_ops, name)(gates.double()), tolerance, name)
        heads, angles = random_rows(num_rows, 7, 64)[:, :5], random_rows(num_rows, 1, 32)
        exact = torch_ops.rotary(heads.double(), angles.double(), angles.double())
        check_close(ops.rotary(heads, angles, angles), exact, tolerance, "rotary")
        weights = random_rows(2, 64)
        exact = torch_ops.head_rms_norm(heads.float(), weights.float(), 3, 1e-5)
        check_close(ops.head_rms_norm(heads, weights, 3, 1e-5), exact, tolerance, "head_rms_norm")


def sampling_checks(device: torch.device, vocab_sizes: list[int], num_rows: int) -> Iterator[Check]:
    """Tokens of random settings against torch on the same device and on the CPU; drafts that are verified."""
    for vocab_size in vocab_sizes:
        yield Check(f"sampling, vocabulary of {vocab_size}", partial(_sample, device, vocab_size, num_rows))
    yield Check("verification of chains and trees", partial(_verify, device))


def _sample(device: torch.device, vocab_size: int, num_rows: int) -> None:
    shuffle = random.Random(vocab_size)
    choices: dict[str, list[Any]] = {"temperature": [0.0, 0.7, 1.0], "top_k": [0, 1, 40], "top_p": [1.0, 0.9, 0.3]}
    rows = [
        SamplingRow(
            SamplingParams(**{name: shuffle.choice(values) for name, values in choices.items()}),
            seed=shuffle.getrandbits(63),
            position=shuffle.randrange(1000),
        )
        for _ in range(num_rows)
    ]
    logits = 3 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    logits[::5] = logits[::5].round()
    logits[1, 0] = float("nan")
    found, invalid = build_sampling_ops("triton").choose_tokens(
        logits.to(device), SamplingBatch.build(rows, vocab_size, device)
    )
    for other in {device, torch.device("cpu")}:
        expected, _ = TORCH_SAMPLING.choose_tokens(logits.to(other), SamplingBatch.build(rows, vocab_size, other))
        differing = (found.cpu() != expected.cpu()).nonzero().flatten().tolist()
        assert not differing, f"{len(differing)} of {num_rows} tokens differ from torch on {other}: rows {differing}"
    assert invalid.nonzero().flatten().tolist() == [1], f"invalid rows {invalid.tolist()}"


def _verify(device: torch.device) -> None:
    ops = build_sampling_ops("triton")
    counts = [3, 1, 9, 70, 1, 5]
    cu_num_rows = torch.tensor([0, *accumulate(counts)], device=device)
    for seed in range(8):
        shuffle = random.Random(seed)
        sampled, drafts = (
            torch.tensor([shuffle.randrange(2) for _ in range(n)], device=device)
            for n in (sum(counts), sum(counts) - len(counts))
        )
        parents = [shuffle.randrange(-1, node) for count in counts for node in range(count - 1)]
        trees = torch.tensor(parents, device=device)
        for found, expected in (
            (ops.verify_chain(sampled, drafts, cu_num_rows), TORCH_SAMPLING.verify_chain(sampled, drafts, cu_num_rows)),
            (
                ops.verify_tree(sampled, drafts, trees, cu_num_rows),
                TORCH_SAMPLING.verify_tree(sampled, drafts, trees, cu_num_rows),
            ),
        ):
            assert torch.equal(found.is_emitted, expected.is_emitted), f"seed {seed}: other rows are emitted"
            assert torch.equal(found.last_row, expected.last_row), f"seed {seed}: other last rows"
            assert torch.equal(found.num_accepted_tokens, expected.num_accepted_tokens), f"seed {seed}: other counts"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
