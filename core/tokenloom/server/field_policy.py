"""What happens to fields that are not ours: some change nothing, some are refused, misspellings are refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tokenloom.errors import did_you_mean
from tokenloom.server.api_errors import ApiError

__all__ = ["HARMLESS", "UNSUPPORTED", "check_fields"]

HARMLESS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields of OpenAI's clients that would change no token here."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "early_stopping": (None, False),
    "function_call": (None,),
    "functions": (None, []),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1),
    "mm_processor_kwargs": (None,),
    "modalities": (None, ["text"]),
    "prompt_embeds": (None,),
    "spaces_between_special_tokens": (None, True),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
}
"""Fields that would change the answer, and the values with which they do not."""

_INSTEAD = {
    "best_of": "n choices and choose among them",
    "functions": "tools",
    "function_call": "tool_choice",
    "chat_template": "chat_template_kwargs for the template's variables",
    "documents": 'chat_template_kwargs={"documents": ...}',
}
_MAX_STRANGE, _MAX_NAME = 64, 64
"""Looking for what was meant takes time; nobody misspells more, or writes longer names."""
_NEAR = 0.8
"""Names that are more alike than this are taken for misspellings (difflib's ratio)."""


def check_fields(fields: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """The names of fields that will be ignored: neither ours nor like one of ours.

    Raises:
        ApiError: 400 for a field that cannot be honoured, or that looks like a misspelling.
    """
    strange = {name: value for name, value in fields.items() if name not in known and name not in HARMLESS}
    if len(strange) > _MAX_STRANGE:
        raise ApiError(
            400, f"{len(strange)} fields are unknown here, such as {next(iter(strange)):.80}; leave them out"
        )
    ignored: list[str] = []
    for name, value in strange.items():
        if name in UNSUPPORTED:
            _check_neutral(name, value)
        elif len(name) <= _MAX_NAME and difflib.get_close_matches(name, known, n=1, cutoff=_NEAR):
            raise ApiError(400, f"unknown field {name!r}.{did_you_mean(name, known)}", param=name, code="unknown_field")
        else:
            ignored.append(name)
    return tuple(ignored)


def _check_neutral(name: str, value: Any) -> None:
    neutral = UNSUPPORTED[name]
    if any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral):
        return
    advice = f"use {_INSTEAD[name]} instead" if name in _INSTEAD else "leave it out"
    raise ApiError(400, f"{name} is not supported; {advice}", param=name, code="unsupported_field")
