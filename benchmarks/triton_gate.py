"""Compiles every Triton kernel in the variants that are in use, for cards that need not be here, and checks the result.

    python benchmarks/triton_gate.py
    python benchmarks/triton_gate.py --cards sm_90 gfx942 --match "prompt, head_dim 128" --quiet

A variant fails if it spills registers, takes more shared memory than the card has, or multiplies matrices without the
card's matrix units; wide tiles must use wgmma on sm_90. Registers and shared memory are printed. Nothing is run.
Exit status: 0 if nothing fails, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from tokenloom.ops.triton_variants import fused_launches
from tokenloom.testing.kernel_gate import CARDS, CompiledLaunch, compile_launch
from tokenloom_attention.triton_paged.variants import Variant, attention_variants

_DEFAULT_CARDS = ("sm_80", "sm_90", "sm_100", "gfx942")


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
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    parser.add_argument("--quiet", action="store_true", help="print variants with faults only")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 leaves nothing to compile; unset it")
    step = 1 if options.jobs == 1 else 2 * options.jobs
    parts = [Part(card, options.match, start, step) for card in options.cards for start in range(step)]
    num_faults = num_rows = 0
    for row in _rows(parts, options.jobs):
        num_rows += 1
        num_faults += bool(row.faults)
        if row.faults or not options.quiet:
            print(row, flush=True)
    if num_rows == 0:
        parser.error(f"no variant has {options.match!r} in its name; they look like 'prompt, head_dim 128, bfloat16'")
    print(f"{num_rows} variants, {num_faults} with faults")
    return 1 if num_faults else 0


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
    variants = [*attention_variants(part.card), *_fused_variants()]
    wanted = [variant for variant in variants if part.match in variant.name]
    return [compile_variant(variant, part.card) for variant in wanted[part.start :: part.step]]


def compile_variant(variant: Variant, card: str) -> Row:
    """Compiles one variant and judges what came out."""
    compiled = compile_launch(variant.launch, card)
    faults = (*compiled.faults(), *_missing_instructions(variant, compiled))
    instructions = tuple(sorted(compiled.matrix_instructions()))
    return Row(card, variant.name, compiled.num_registers, compiled.shared_bytes, instructions, faults)


def _fused_variants() -> Iterator[Variant]:
    for name, launch in fused_launches():
        yield Variant(name, launch)


def _missing_instructions(variant: Variant, compiled: CompiledLaunch) -> Iterator[str]:
    found = compiled.matrix_instructions()
    if variant.products and not found:
        yield f"multiplies matrices without {compiled.card}'s matrix units"
    elif variant.is_wide and compiled.card == "sm_90" and "wgmma" not in found:
        yield f"has wide tiles, but no wgmma; {compiled.card} is at half its speed without"


if __name__ == "__main__":
    sys.exit(main())
