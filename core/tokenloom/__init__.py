"""tokenloom: a plugin-based modular runtime for LLM inference.

`LLM` is the way in; `SamplingParams` and `GrammarSpec` say what a reply shall be like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenloom.grammar_spec import GrammarSpec
from tokenloom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenloom.llm import LLM

__all__ = ["LLM", "GrammarSpec", "SamplingParams", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # LLM pulls in torch, which listing plugins or composing a config does not need.
    if name == "LLM":
        from tokenloom.openmp import choose_spin

        choose_spin()
        from tokenloom.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
