"""One launch of a Triton kernel as data: to run it, to look at it, or to compile it for a card that is not here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

__all__ = ["KernelLaunch", "KernelVariant"]


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

    def without(self, names: Collection[str]) -> KernelLaunch:
        """The same launch without these arguments, which are given to `run` then."""
        return replace(self, arguments={name: value for name, value in self.arguments.items() if name not in names})

    def run(self, tensors: Mapping[str, Any] | None = None) -> None:
        """Starts the kernel on the current stream; does nothing for an empty grid.

        Args:
            tensors: arguments that are not in `arguments`: of a launch that is made once and run with many.
        """
        if all(self.grid):
            self.kernel[self.grid](
                **self.arguments,
                **({} if tensors is None else tensors),
                **self.constants,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
                enable_fp_fusion=True,
            )


@final
@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A launch that is in use, with what must be true of it once it is compiled; for `benchmarks/triton_gate.py`.

    Attributes:
        name: e.g. "prompt, head_dim 128, bfloat16".
        launch: its tensors have no memory (device "meta").
        products: whether it multiplies matrices, in a dtype of the matrix units.
        is_wide: whether its tiles are large enough for a card's fastest instructions, which take 64 rows and more.
        forbidden: instructions that may not occur, e.g. "lg2.approx" where a logarithm must be exact.
    """

    name: str
    launch: KernelLaunch
    products: bool = False
    is_wide: bool = False
    forbidden: tuple[str, ...] = ()
