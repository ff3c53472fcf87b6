"""From a body's fields to `SamplingParams` and `RequestTraits`; whatever is out of range is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tokenloom.errors import RequestError
from tokenloom.request_factory import RequestTraits
from tokenloom.sampling_params import SamplingParams
from tokenloom.server.auth import Tenant
from tokenloom.server.generation_body import MAX_BAD_WORD_CHARS, MAX_STOP_CHARS, GenerationBody

__all__ = ["request_traits", "sampling_params"]

_SAME_NAME = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "bad_words",
    "logits_processors",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling_params(body: GenerationBody, names: Mapping[str, str] | None = None, **others: Any) -> SamplingParams:
    """How to sample.

    Args:
        body: the request.
        names: what the client calls a field of `SamplingParams`, where it is not the same.
        others: `max_tokens`, `logprobs` and `prompt_logprobs`, which the two APIs spell in their own ways.

    Raises:
        RequestError: a value is out of range; `param` is its field.
    """
    _check_texts(body)
    _check_processors(body)
    fields = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        fields["logit_bias"] = {_token_id(key): bias for key, bias in body.logit_bias.items()}
    if body.allowed_token_ids is not None:
        fields["allowed_token_ids"] = list(dict.fromkeys(body.allowed_token_ids))
    try:
        return SamplingParams(**fields, **others)
    except RequestError as error:
        param, name = error.param or "", (names or {}).get(error.param or "")
        if name is None:
            raise
        raise RequestError(str(error).replace(param, name, 1), name, code=error.code) from None


def request_traits(body: GenerationBody, tenant: Tenant) -> RequestTraits:
    """What schedulers and caches may know of a request.

    Raises:
        RequestError: a value is out of range.
    """
    return RequestTraits(
        priority=body.priority or 0,
        tenant=tenant.name,
        cache_salt=tenant.salt_for(body.cache_salt),
        ttft_slo_s=body.ttft_slo_s,
        tpot_slo_s=body.tpot_slo_s,
        retention_priority=body.retention_priority or 0,
        retention_ttl_s=body.retention_ttl_s,
    )


def _check_texts(body: GenerationBody) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    for name, texts, limit in (
        ("stop", stops, MAX_STOP_CHARS),
        ("bad_words", body.bad_words or [], MAX_BAD_WORD_CHARS),
    ):
        longest = max(map(len, texts), default=0)
        if longest > limit:
            raise RequestError(f"{name}: a string may have {limit} characters at most, got {longest}", name)


def _check_processors(body: GenerationBody) -> None:
    """Settings of plugins are checked by the engine, which they have to reach first."""
    try:
        msgspec.msgpack.encode(body.logits_processors)
    except OverflowError:
        raise RequestError("logits_processors: integers may have 64 bits", "logits_processors") from None


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise RequestError(f'logit_bias: keys are token ids such as "50256", got {key!r:.80}', "logit_bias")
    return int(key)
