"""One launch of a Triton kernel as data: to run it, to look at it, or to compile it for a card that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

__all__ = ["KernelLaunch"]


@final
@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """What a `@triton.jit` kernel is called with.

    `tokenloom.testing.kernel_gate` compiles launches ahead of time; so what is checked there is what an operation
    really launches, and no second list of signatures can fall behind.

    Attributes:
        kernel: the jitted function.
        grid: programs along each of up to three axes.
        arguments: tensors, numbers and None by parameter name.
        constants: values of the `tl.constexpr` parameters.
        num_warps, num_stages: how the compiler lays a program out; without meaning to the interpreter.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int

    def run(self) -> None:
        """Starts the kernel on the current stream; does nothing for an empty grid."""
        if all(self.grid):
            self.kernel[self.grid](
                **self.arguments,
                **self.constants,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
                enable_fp_fusion=True,
            )
