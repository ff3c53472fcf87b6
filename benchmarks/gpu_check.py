"""Checks the GPU paths on a card: are they right, and how fast are they? One run of less than six minutes.

    python benchmarks/gpu_check.py --output gpu_check.json
    python benchmarks/gpu_check.py --only correctness

Runs from a checkout, without an installation, and reads nothing else. It needs Linux, Python 3.11 or newer, an NVIDIA
card of compute capability 8.0 or newer, and torch 2.11 or newer with the triton that belongs to it (3.6). Of what an
image with torch usually has, it needs numpy, safetensors, tokenizers, jinja2, markupsafe, psutil, pluggy, packaging,
pyyaml, protobuf, tqdm, typing_extensions and pytest; and transformers, to be compared with. Such an image often lacks
these, which can be carried there as wheels (antlr4 has a source archive only: build its wheel first):

    annotated-types==0.8.0
    antlr4-python3-runtime==4.9.3
    hydra-core==1.3.8
    llguidance==1.9.1
    omegaconf==2.3.1
    platformdirs==4.14.9
    pydantic==2.14.4
    pydantic-core==2.50.5
    typing-inspection==0.4.5

First correctness: attention (triton_paged with each kind of cache, triton_flash, naive) on mixed steps in memory full
of NaN, a cache of more than 2^31 elements, fused operations, sampling and verification, and a tiny engine whose tokens
must not depend on the backend. Then speed: decode in GB/s beside the rate of a copy, prompts in TFLOP/s beside the rate
of a matrix product, PyTorch's SDPA with each of its backends and compiled flex_attention, what splitting a sequence
gains, and output tokens per second of whole 1B and 8B Llamas with random weights beside Transformers. What there is no
time for is left out by name. Exit status 1 if anything is wrong; a target that is missed is shown, and no error.

`--small` takes tiny sizes, and `--device cpu` Triton's interpreter (TRITON_INTERPRET=1): that tests this script.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(ROOT / "core"),
    *(str(path) for path in sorted((ROOT / "plugins").iterdir())),
    str(ROOT / "benchmarks"),
]

import torch  # noqa: E402  (what it needs of this repository need not be installed)
from gpu_check_attention import Row, decode_rows, flex_rows, prompt_rows  # noqa: E402
from gpu_check_correctness import (  # noqa: E402
    Check,
    attention_checks,
    large_cache_check,
    operation_checks,
    run_checks,
    sampling_checks,
)
from gpu_check_engine import EngineRow, engine_row, generate, prompts, transformers_row, write_llama  # noqa: E402
from gpu_check_operations import OperationRow, operation_rows  # noqa: E402
from gpu_check_sizes import SMALL, TINY, Sizes  # noqa: E402
from gpu_check_timing import Budget, copy_bytes_per_s, matmul_flop_per_s  # noqa: E402

from tokenloom.bench.provenance import provenance  # noqa: E402
from tokenloom.sampling_params import SamplingParams  # noqa: E402

SECTIONS = ("correctness", "speed", "engine")


@dataclass(slots=True)
class Report:
    """Everything that was found; `skipped` names what there was no time for."""

    failures: dict[str, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    yardsticks: dict[str, float] = field(default_factory=dict)
    attention: list[Row] = field(default_factory=list)
    operations: list[OperationRow] = field(default_factory=list)
    engines: list[EngineRow] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the sections, prints tables, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--small", action="store_true", help="tiny sizes, to test this script")
    parser.add_argument("--budget-s", type=float, default=285.0, help="what begins later than this is left out")
    parser.add_argument("--folder", help="where the models' files go for a while: 18 GB; /dev/shm if it has room")
    parser.add_argument("--output", default="gpu_check.json", help="file for the report as JSON")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --device cpu --small with TRITON_INTERPRET=1 tests the script alone")
    sizes, report, budget = SMALL if args.small else Sizes(), Report(), Budget(args.budget_s)
    if "correctness" in args.only:
        check_correctness(device, sizes, report, budget.part(0.4))
    if "speed" in args.only:
        measure_speed(device, sizes, report, budget.part(0.65))
    if "engine" in args.only:
        measure_engines(device, sizes, report, budget, args.folder)
    targets = target_lines(report)
    print("\n".join(["", *targets, *(f"left out, no time: {name}" for name in report.skipped)]))
    print(f"{len(report.passed)} checks passed, {len(report.failures)} failed")
    record = {**asdict(report), "targets": targets, "is_small": args.small, "provenance": provenance()}
    Path(args.output).write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
    return 1 if report.failures else 0


def check_correctness(device: torch.device, sizes: Sizes, report: Report, budget: Budget) -> None:
    """Fills in `passed` and `failures`."""
    for name, fault in run_checks(_until(_checks(device, sizes), report, budget)):
        print(f"{'FAILED' if fault else 'ok':<7}{name}{': ' if fault else ''}{fault}", flush=True)
        if fault:
            report.failures[name] = fault
        else:
            report.passed.append(name)


def _until(checks: Iterator[Check], report: Report, budget: Budget) -> Iterator[Check]:
    for check in checks:
        if budget.left_s > 0:
            yield check
        else:
            report.skipped.append(check.name)


def _checks(device: torch.device, sizes: Sizes) -> Iterator[Check]:
    dtypes, kv_dtypes = list(sizes.dtypes), list(sizes.kv_dtypes)
    yield Check("engine: backends and operations give the same tokens", lambda: _same_tokens(device))
    yield from sampling_checks(device, list(sizes.vocab_sizes), sizes.num_rows)
    for kv_dtype in kv_dtypes:
        yield large_cache_check(device, sizes.large_elements, kv_dtype)
    yield from attention_checks(device, sizes.full_attention, kv_dtypes, sizes.layers)
    yield from operation_checks(device, dtypes, list(sizes.operation_sizes))
    for kind in sizes.more_attention:  # each sort of layer is a kernel to compile
        yield from attention_checks(device, kind, ["auto"])


def _same_tokens(device: torch.device) -> None:
    """Greedy and seeded tokens of a tiny model in fp32."""
    folder = Path(tempfile.mkdtemp())
    work = prompts(3, 9, TINY.vocab)
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=5, max_tokens=5, ignore_eos=True)
    try:
        write_llama(folder / "model", TINY, torch.float32, device)
        found: dict[str, list[list[int]]] = {}
        for choice in ("torch_sdpa torch", "naive triton", "triton_paged triton", "triton_flash torch"):
            attention, operations = choice.split()
            overrides = _overrides(device, f"attention={attention}", f"engine.operations={operations}")
            overrides = [*overrides, "model.dtype=float32", "cache.num_blocks=60", "executor.poison_kv=true"]
            for sampling in (None, params):
                tokens, _, _ = generate(folder / "model", overrides, work, 5, sampling)
                found[choice] = [*found.get(choice, []), *tokens]
    finally:
        shutil.rmtree(folder)
    first = next(iter(found.values()))
    differing = [name for name, tokens in found.items() if tokens != first]
    assert not differing, f"{', '.join(differing)}: other tokens than {next(iter(found))}: {found}"


def _overrides(device: torch.device, *more: str) -> list[str]:
    return [f"model.device={device.type}", "scheduler.max_num_seqs=64", *more]


def measure_speed(device: torch.device, sizes: Sizes, report: Report, budget: Budget) -> None:
    """Fills in `yardsticks`, `attention` and `operations`."""
    report.yardsticks["copy_gb_s"] = copy_bytes_per_s(device, sizes.copy_bytes) / 1e9
    report.yardsticks["matmul_tflop_s"] = matmul_flop_per_s(device, sizes.matmul_size) / 1e12
    print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in report.yardsticks.items()))
    for name, rows in _speed_parts(device, sizes):
        if budget.left_s <= 0:
            report.skipped.append(name)
            continue
        for row in rows:
            report.attention.append(row)
            unit = "GB/s" if row.case.startswith("decode") else "TFLOP/s"
            figures = f"{_number(row.time_s, 1e6):>12} us{_number(row.rate):>9} {unit}"
            print(f"{row.case:<28}{row.name:<26}{figures}  {row.note}", flush=True)
    if budget.left_s > 0:
        for operation in operation_rows(device, sizes.operation_sizes[-1], sizes.vocab_sizes[-1], sizes.num_rows):
            report.operations.append(operation)
            times = f"{1e6 * operation.torch_s:>10.1f} us torch {1e6 * operation.triton_s:>10.1f} us triton"
            print(f"{operation.name:<54}{times}{operation.torch_s / operation.triton_s:>8.2f} x")


def _speed_parts(device: torch.device, sizes: Sizes) -> Iterator[tuple[str, Iterator[Row]]]:
    """Names, and rows that are measured when they are asked for."""
    for num_requests, length in sizes.decodes:
        name = f"decode {num_requests} x {length}"
        yield name, decode_rows(device, sizes.heads, num_requests, length, list(sizes.kv_dtypes))
    for length in sizes.prompts:
        yield f"prompt {length}", prompt_rows(device, sizes.heads, length)
    if device.type == "cuda":
        yield "flex_attention", flex_rows(device, sizes.heads, 8192)


def measure_engines(device: torch.device, sizes: Sizes, report: Report, budget: Budget, folder: str | None) -> None:
    """Fills in `engines`."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for model in sizes.models:
        if budget.left_s <= 0:
            report.skipped.append(f"{model.name} whole")
            continue
        place = Path(tempfile.mkdtemp(dir=folder or _roomy_folder()))
        try:
            write_llama(place / "model", model, dtype, device)
            num_blocks = 1 + sizes.streams * (sum(sizes.lengths) // 16 + 2)
            overrides = _overrides(device, "attention=triton_paged", f"cache.num_blocks={num_blocks}")
            overrides += [f"model.dtype={str(dtype).removeprefix('torch.')}", "engine.operations=triton"]
            for row in (
                engine_row(place / "model", model, overrides, sizes.streams, sizes.lengths),
                transformers_row(place / "model", model, device, sizes.streams, sizes.lengths),
            ):
                report.engines.append(row)
                print(f"{row.model:<28}{row.engine:<40}{_number(row.output_tok_s):>10} tok/s  {row.note}", flush=True)
        finally:
            shutil.rmtree(place)


def _roomy_folder() -> str | None:
    """Memory for the models' files if there is enough, else the system's temporary folder."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and shutil.disk_usage(shm).free > 40 << 30 else None


def target_lines(report: Report) -> list[str]:
    """Each target with what was measured."""
    rates = {(row.case, row.name): row.rate for row in report.attention}
    speeds = {(row.model, row.engine.split()[0]): row.output_tok_s for row in report.engines}
    copy, matmul = (report.yardsticks.get(name) for name in ("copy_gb_s", "matmul_tflop_s"))
    prompt = "prompt 8192, head_dim 128"
    flash = rates.get((prompt, "triton_flash"))
    lines = [
        _target("decode 32 x 8192 / copy", rates.get(("decode 32 x 8192", "triton_paged auto")), copy, 0.85),
        _target("prompt 8192 / matrix product", flash, matmul, 0.60),
        _target("prompt 8192 / compiled flex_attention", flash, rates.get((prompt, "flex_attention, compiled")), 0.9),
        _target("prompt 8192 / cuDNN", flash, rates.get((prompt, "sdpa cudnn")), 0.7),
    ]
    for model in dict.fromkeys(row.model for row in report.engines):
        own, other = (speeds.get((model, engine)) for engine in ("tokenloom", "transformers"))
        lines.append(_target(f"{model} / transformers", own, other, 5.0))
    return lines


def _target(name: str, value: float | None, yardstick: float | None, wanted: float) -> str:
    if value is None or yardstick is None:
        return f"target {name}: not measured"
    ratio = value / yardstick
    return f"target {name}: {ratio:.2f}, wanted {wanted:.2f}: {'met' if ratio >= wanted else 'MISSED'}"


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None or math.isnan(value) else f"{factor * value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
