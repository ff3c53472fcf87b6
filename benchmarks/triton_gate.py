"""Compiles every Triton kernel in the variants that are in use, for cards that need not be here, and checks the result.

    make gate                   as CI runs it
    make gate TRITON=3.6.0      the same with another Triton, in front of the installed one
    python benchmarks/triton_gate.py --cards sm_90 gfx942 --match "prompt, head_dim 128"

A variant fails if it spills registers, takes more shared memory than the card has, multiplies matrices without the
card's matrix units, or has an instruction that it may not have; wide tiles must use wgmma on sm_90. Registers and
shared memory are printed. Nothing is run, and nothing taken from or left in Triton's cache.
Exit status: 0 if nothing fails, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import triton

from tokenloom.ops.kernel_launch import KernelVariant
from tokenloom.ops.triton_variants import fused_variants
from tokenloom.testing.kernel_gate import CARDS, CompiledLaunch, compile_launch
from tokenloom_attention.triton_paged.variants import attention_variants
from tokenloom_quant.triton_low_bit.variants import low_bit_variants

_DEFAULT_CARDS = ("sm_80", "sm_90", "sm_100", "gfx942")

_PARTS = 8
"""Parts of a card's variants: many, so that processes end together and what is found is shown soon."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a card's variants: every `step`-th from `start` on, for one process."""

    card: str
    match: str
    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one variant."""

    card: str
    name: str
    num_registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: tuple[str, ...]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        used = "+".join(self.instructions) or "-"
        line = (
            f"{self.card:7} {self.num_registers:4} registers {self.shared_bytes / 1024:6.1f} KiB  {used:16} {self.name}"
        )
        return "\n".join([line, *(f"        FAULT: {fault}" for fault in self.faults)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, prints a row a variant, and counts faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", nargs="+", choices=sorted(CARDS), default=list(_DEFAULT_CARDS))
    parser.add_argument("--match", default="", metavar="TEXT", help="only variants whose name has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes that compile")
    parser.add_argument("--quiet", action="store_true", help="print variants with faults only")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 leaves nothing to compile; unset it")
    parts = [Part(card, options.match, start, _PARTS) for card in options.cards for start in range(_PARTS)]
    rows: list[Row] = []
    # An empty cache: what is judged is what this Triton makes of the kernels today.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for row in _rows(parts, options.jobs):
            rows.append(row)
            if row.faults or not options.quiet:
                print(row, flush=True)
    if not rows:
        parser.error(f"no variant has {options.match!r} in its name; they look like 'prompt, head_dim 128, bfloat16'")
    for card in options.cards:
        print(_summary(card, [row for row in rows if row.card == card]))
    num_faults = sum(bool(row.faults) for row in rows)
    print(f"{len(rows)} variants, {num_faults} with faults, by Triton {triton.__version__}")
    return 1 if num_faults else 0


def _summary(card: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{card:7} no variants"
    registers = sorted(row.num_registers for row in rows)
    return (
        f"{card:7} {len(rows)} variants: {registers[0]} to {registers[-1]} registers, half have at most "
        f"{registers[len(registers) // 2]}; {sum(row.spilled_bytes > 0 for row in rows)} spill; up to "
        f"{max(row.shared_bytes for row in rows) / 1024:.1f} KiB of shared memory"
    )


def _rows(parts: Sequence[Part], jobs: int) -> Iterator[Row]:
    if jobs == 1:
        for part in parts:
            yield from compile_part(part)
        return
    # Compilers hold locks that a forked process would inherit.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(compile_part, parts):
            yield from rows


def compile_part(part: Part) -> list[Row]:
    """Compiles a part's variants, one after the other."""
    variants = [*attention_variants(part.card), *fused_variants(), *low_bit_variants(part.card)]
    wanted = [variant for variant in variants if part.match in variant.name]
    return [compile_variant(variant, part.card) for variant in wanted[part.start :: part.step]]


def compile_variant(variant: KernelVariant, card: str) -> Row:
    """Compiles one variant and judges what came out."""
    compiled = compile_launch(variant.launch, card)
    return Row(
        card=card,
        name=variant.name,
        num_registers=compiled.num_registers,
        spilled_bytes=compiled.spilled_bytes,
        shared_bytes=compiled.shared_bytes,
        instructions=tuple(sorted(compiled.matrix_instructions())),
        faults=(*compiled.faults(), *_wrong_instructions(variant, compiled)),
    )


def _wrong_instructions(variant: KernelVariant, compiled: CompiledLaunch) -> Iterator[str]:
    found = compiled.matrix_instructions()
    if variant.products and not found:
        yield f"multiplies matrices without {compiled.card}'s matrix units"
    elif variant.is_wide and compiled.card == "sm_90" and "wgmma" not in found:
        yield f"has wide tiles, but no wgmma; {compiled.card} is at half its speed without"
    for instruction in variant.forbidden:
        if instruction in compiled.assembly:
            yield f"has {instruction}, which it may not have on {compiled.card}"


if __name__ == "__main__":
    sys.exit(main())
