"""Whether a draft model speaks the target's tokens."""

from __future__ import annotations

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ConfigError
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.text.tokenizer import build_tokenizer

__all__ = ["check_vocabulary"]

_TOKENIZER_FILE = "tokenizer.json"


def check_vocabulary(draft: Checkpoint, target: DrafterContext) -> None:
    """Checks that ids mean the same in both models. Embeddings may differ in rows that pad them.

    Raises:
        ConfigError: they do not; names the first token that differs.
        ModelError: a tokenizer cannot be read.
    """
    num_tokens, num_target = draft.config.vocab_size, target.vocab_size
    if target.model_path is None:
        if num_tokens != num_target:
            raise ConfigError(_refusal(draft, f"it has {num_tokens} tokens, the target {num_target}"))
        return
    own = open_checkpoint(target.model_path)
    try:
        if _same_file(draft, own):
            return
        ours = build_tokenizer(draft.tokenizer_source(), num_tokens)
        theirs = build_tokenizer(own.tokenizer_source(), num_target)
    finally:
        own.close()
    for token_id in range(max(num_tokens, num_target)):
        word = ours.id_to_token(token_id) if token_id < num_tokens else ""
        expected = theirs.id_to_token(token_id) if token_id < num_target else ""
        if word != expected:
            raise ConfigError(_refusal(draft, f"its token {token_id} is {word!r}, the target's {expected!r}"))


def _same_file(draft: Checkpoint, target: Checkpoint) -> bool:
    """Whether both folders have the same tokenizer.json, which is the quickest way to know."""
    files = [
        source.path / _TOKENIZER_FILE
        for source in (draft.tokenizer_source(), target.tokenizer_source())
        if source.kind == "hf"
    ]
    is_there = len(files) == 2 and all(file.is_file() for file in files)
    return is_there and files[0].read_bytes() == files[1].read_bytes()


def _refusal(draft: Checkpoint, what: str) -> str:
    return (
        f"spec_decode=draft_model: {draft.path} has another vocabulary than the target: {what}; choose a draft model "
        "with the target's tokenizer, usually a smaller one of its family"
    )
