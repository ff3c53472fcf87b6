"""The contract of an opened checkpoint, whatever its format; `loader/` implements it, `models/` and `text/` read it."""

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.fields import Fields
from tokenloom.checkpoint.tokenizer_source import TokenizerSource

__all__ = ["Checkpoint", "Fields", "TokenizerSource"]
