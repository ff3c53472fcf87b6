"""The gate for Triton kernels: what it calls a fault. `make gate` holds that the kernels in use have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tokenloom.testing.kernel_gate import CARDS, CompiledLaunch

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python without Triton's interpreter, which would leave nothing to compile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_spills_and_too_much_shared_memory_are_faults() -> None:
    assert CompiledLaunch("sm_90", 255, 0, 227 * 1024, "").faults() == []
    found = CompiledLaunch("gfx942", 255, 8, 65 * 1024, "").faults()
    assert "spills 8 bytes a thread on gfx942" in found[0]
    assert f"takes {65 * 1024} bytes of shared memory, gfx942 has {64 * 1024}" in found[1]


def test_matrix_instructions_are_told_from_mentions() -> None:
    text = "  // mma.sync in words\n\twgmma.mma_async.sync.aligned.m64n64k16;\n\tv_mfma_f32_16x16x16_bf16 a, b\n"
    assert CompiledLaunch("sm_90", 1, 0, 0, text).matrix_instructions() == {"wgmma", "v_mfma"}
    text = "\t@%p12 tcgen05.mma.cta_group::1.kind::f16 [ %r1 ], %rd2;\n"
    assert CompiledLaunch("sm_100", 1, 0, 0, text).matrix_instructions() == {"tcgen05.mma"}


def test_a_kernel_that_spills_or_outgrows_shared_memory_fails_the_gate() -> None:
    """Tiles that no card has registers for, and more stages than fit; beside a kernel that is as it should be, but for
    an instruction."""
    program = """
import sys
from dataclasses import replace
from tokenloom_attention.triton_paged import tuning, variants
sys.path.insert(0, "benchmarks")
import triton_gate
changes = {"many": tuning.Tiles(128, 64, 4, 2), "whole": tuning.Tiles(128, 32, 8, 9)}
variants.tuning_for = lambda *given: replace(tuning.tuning_for(*given), **changes)
fused = [variant for variant in triton_gate.fused_variants() if variant.name == "verify_chain"]
triton_gate.fused_variants = lambda: [*fused, replace(fused[0], name="another", forbidden=("ld.global",))]
triton_gate.attention_variants = lambda card: variants.attention_variants(card, (256,))
for match in ("prompt, head_dim 256, bfloat16, window, soft cap", "verify_chain", "another"):
    print(triton_gate.main(["--cards", "sm_90", "--jobs", "1", "--match", match]))
"""
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    faults = [line.split("FAULT: ")[1] for line in lines if "FAULT" in line]
    assert [fault.split()[0] for fault in faults] == ["spills", "takes", "has"]
    assert "bytes of shared memory, sm_90 has 232448" in faults[1]
    assert [line for line in lines if line in "01"] == ["1", "0", "1"]
    assert "sm_90   2 variants" in done.stdout


def test_e4m3_does_not_compile_for_cards_that_lack_it() -> None:
    """What the backends refuse by name, the compiler refuses too."""
    program = """
import sys
from tokenloom.testing.kernel_gate import compile_launch
from tokenloom_attention.triton_paged.variants import attention_variants
launch = next(each.launch for each in attention_variants("sm_90") if "cache float8_e4m3fn" in each.name)
for card in sys.argv[1:]:
    try:
        compile_launch(launch, card)
        print(card, "compiled")
    except Exception as error:
        print(card, "fp8e4nv" in str(error.__cause__ or error))
"""
    assert run("-c", program, "sm_80", "sm_86").stdout.splitlines() == ["sm_80 True", "sm_86 True"]


def test_a_gate_without_variants_says_so() -> None:
    done = run("benchmarks/triton_gate.py", "--cards", "sm_90", "--jobs", "1", "--match", "no such kernel")
    assert done.returncode == 2
    assert "no variant has 'no such kernel' in its name" in done.stderr


def test_cards_have_the_shared_memory_that_their_makers_state() -> None:
    kib = {name: card.shared_bytes // 1024 for name, card in CARDS.items()}
    assert kib == {
        "sm_80": 163,
        "sm_86": 99,
        "sm_89": 99,
        "sm_90": 227,
        "sm_100": 227,
        "sm_103": 227,
        "sm_120": 99,
        "gfx942": 64,
        "gfx950": 160,
    }
