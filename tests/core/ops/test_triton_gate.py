"""The fused kernels compile for a card that is not here, without spills; in a process without Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys
from tokenloom.ops.triton_variants import fused_launches
from tokenloom.testing.kernel_gate import compile_launch

chosen = [(name, launch) for name, launch in fused_launches() if name in json.loads(sys.argv[1])]
compiled = [(name, compile_launch(launch, "sm_90")) for name, launch in chosen]
print(json.dumps({name: [one.num_registers, one.faults(), "lg2.approx" in one.assembly] for name, one in compiled}))
"""
NAMES = [
    "rms_norm 16384",
    "rms_norm 576, weight in fp32",
    "add_rms_norm 4096",
    "silu_and_mul 16384",
    "gelu_tanh_and_mul 2304",
    "head_rms_norm 128",
    "rotary 128 of 128",
    "rotary 32 of 96",
    "choose_tokens greedy 49152",
    "choose_tokens plain 128256",
    "choose_tokens ranked 128256",
    "verify_chain",
    "verify_tree",
]


def test_fused_kernels_compile_for_sm_90_without_spills() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(NAMES)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == sorted(NAMES)
    assert {name: faults for name, (_, faults, _) in found.items() if faults} == {}
    assert all(16 <= num_registers <= 255 for num_registers, _, _ in found.values())
    # The hardware's own logarithm has an absolute error: it would lose the small ones that noise is made of.
    assert [name for name, (_, _, is_approximate) in found.items() if is_approximate] == []
