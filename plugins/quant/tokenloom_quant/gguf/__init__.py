"""The blocks of GGUF files as they are: multiplied without being decoded first."""

from tokenloom_quant.gguf.config import GGUFConfig

__all__ = ["GGUFConfig"]
