"""Compiles Triton kernels for cards that are not here, and reads what they take: registers, spills, shared memory.

For authors of kernels: a launch goes in as data (`tokenloom.ops.kernel_launch`), a list of what is wrong comes out.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.ops.kernel_launch import KernelLaunch

__all__ = ["CARDS", "Card", "CompiledLaunch", "compile_launch"]

_TRITON_DTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.int32: "i32",
    torch.int64: "i64",
}


@final
@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU.

    Attributes:
        backend, arch, warp_size: Triton's name for it, e.g. ("cuda", 90, 32).
        shared_bytes: most shared memory of one program.
        tensor_core: what an instruction of its matrix units is called in the compiler's text.
    """

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    tensor_core: str


CARDS: Mapping[str, Card] = {
    "sm_80": Card("cuda", 80, 32, 163 * 1024, "mma.sync"),
    "sm_86": Card("cuda", 86, 32, 99 * 1024, "mma.sync"),
    "sm_89": Card("cuda", 89, 32, 99 * 1024, "mma.sync"),
    "sm_90": Card("cuda", 90, 32, 227 * 1024, "mma"),
    "sm_100": Card("cuda", 100, 32, 227 * 1024, "mma"),
    "sm_103": Card("cuda", 103, 32, 227 * 1024, "mma"),
    "sm_120": Card("cuda", 120, 32, 99 * 1024, "mma.sync"),
    "gfx942": Card("hip", "gfx942", 64, 64 * 1024, "v_mfma"),
    "gfx950": Card("hip", "gfx950", 64, 160 * 1024, "v_mfma"),
}
"""A100, RTX 30, RTX 40, H100 and H200, B200, B300, RTX 50, MI300, MI350."""


@final
@dataclass(frozen=True, slots=True)
class CompiledLaunch:
    """What the compiler made of a launch for one card.

    Attributes:
        card: its name in `CARDS`.
        num_registers: of each thread.
        spilled_bytes: of each thread's memory for what has no register; 0 is what a kernel should have.
        shared_bytes: shared memory of a program.
        assembly: PTX, or AMD's assembly.
    """

    card: str
    num_registers: int
    spilled_bytes: int
    shared_bytes: int
    assembly: str

    def matrix_instructions(self) -> set[str]:
        """The kinds of instructions for matrix units that occur, e.g. {"wgmma"}; empty if it does without."""
        kinds = {"mma.sync", "wgmma", "tcgen05.mma", "v_mfma"}
        predicate = r"^\s*(?:@!?%\w+\s+)?"
        return {kind for kind in kinds if re.search(predicate + re.escape(kind), self.assembly, re.MULTILINE)}

    def faults(self) -> list[str]:
        """What would make it slow, or refuse to start, on this card."""
        limit = CARDS[self.card].shared_bytes
        found = []
        if self.spilled_bytes:
            found.append(f"spills {self.spilled_bytes} bytes a thread on {self.card}; take smaller tiles or more warps")
        if self.shared_bytes > limit:
            found.append(
                f"takes {self.shared_bytes} bytes of shared memory, {self.card} has {limit}; take fewer stages"
            )
        return found


def compile_launch(launch: KernelLaunch, card: str) -> CompiledLaunch:
    """Compiles a launch's kernel for a card, without one.

    Args:
        launch: its tensors may be on the device "meta".
        card: name in `CARDS`.

    Raises:
        triton.CompilationError: the kernel is wrong, or the card lacks what it needs (e4m3 on sm_80, for one).
    """
    import triton
    from triton.backends.compiler import GPUTarget

    wanted = CARDS[card]
    compiled = triton.compile(
        _source(launch),
        target=GPUTarget(wanted.backend, wanted.arch, wanted.warp_size),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True},
    )
    shared = int(compiled.metadata.shared)
    if wanted.backend == "hip":
        text = compiled.asm["amdgcn"]
        return CompiledLaunch(card, _amd_figure(text, "vgpr_count"), _amd_spilled(text), shared, text)
    registers, spilled = _cubin_usage(compiled.asm["cubin"])
    return CompiledLaunch(card, registers, spilled, shared, compiled.asm["ptx"])


def _source(launch: KernelLaunch) -> Any:
    """The launch as Triton's compiler takes it, specialized as at run time: None and 1 are constants, and what divides
    by 16 is known to."""
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments.get(name)
        is_divisible = False
        if name in constants or value is None or (type(value) is int and value == 1):
            signature[name] = "constexpr"
            constants.setdefault(name, value)
        elif isinstance(value, torch.Tensor):
            signature[name] = f"*{_TRITON_DTYPES[value.dtype]}"
            is_divisible = value.storage_offset() * value.itemsize % 16 == 0
        elif isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            is_divisible = value % 16 == 0
        else:
            signature[name] = "fp32"
        if is_divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, by the cuobjdump that comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True)
    registers, stack = (re.search(rf"\b{word}:(\d+)", done.stdout) for word in ("REG", "STACK"))
    assert registers is not None, f"cuobjdump said {done.stdout!r}"
    assert stack is not None, f"cuobjdump said {done.stdout!r}"
    return int(registers[1]), int(stack[1])


def _amd_spilled(text: str) -> int:
    """Bytes of scratch memory of a thread, in which spilled registers lie."""
    return max(_amd_figure(text, "private_segment_fixed_size"), 4 * _amd_figure(text, "vgpr_spill_count"))


def _amd_figure(text: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s*(\d+)", text)
    assert found is not None, f"no {name} in the assembly"
    return int(found[1])
