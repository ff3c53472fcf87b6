"""C++ extensions, compiled on first use with the user's own compiler and kept in tokenloom's cache.

A package of kernels, a plugin's or the core's own, has a folder of sources and calls

    module = load_extension(
        "tokenloom_my_kernels",
        sources=[CSRC / "binding.cpp"],
        kernels=[CSRC / "my_kernel.cpp"],
        include_dirs=[CSRC],
        instead="attention=torch_sdpa",
    )

Files in `sources` are compiled once; one of them holds `PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)` and may include
torch's headers. Files in `kernels` are compiled once per level of the instruction set, hold their code in the namespace
`tl::TL_ISA`, and are chosen from at run time: `tokenloom/isa.h` says how. They include no torch header, since a
function that the linker shares between files must not be one that only some processors can run.
"""

from tokenloom.ops.native.extension import load_extension
from tokenloom.ops.native.toolchain import why_not_buildable

__all__ = ["load_extension", "why_not_buildable"]
