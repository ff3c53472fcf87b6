"""Prompts of wanted lengths, equal exactly as far as requests share them: random token ids, or words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol, final

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.load_generator.endpoint import Endpoint, Prompt
from tokenloom.load_generator.load_request import LoadRequest
from tokenloom.load_generator.workloads import PlannedRequest
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["PromptForm", "PromptWriter", "TokenDecoder", "load_requests", "read_tokenizer"]

PromptForm = Literal["token_ids", "text"]

_LOWEST_ID = 256
"""Below stand control tokens and single bytes in most vocabularies."""
_OWN, _SHARED = 0, 1
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl guy moment air teacher force foot boy age"
)
_WORDS = _VOCABULARY.split()
"""Nouns that are one token each in most vocabularies."""


class TokenDecoder(Protocol):
    """Turns token ids into text."""

    def decode(self, token_ids: list[int]) -> str:
        """The text of some token ids."""


@final
class PromptWriter:
    """Makes the prompts of a workload.

    Args:
        form: token_ids, or text: words, about a token each, if there is no decoder.
        seed: equal seeds give equal prompts.
        vocab_size: token ids are drawn below it.
        decoder: makes text of token ids where text is wanted.
    """

    def __init__(self, form: PromptForm, seed: int, vocab_size: int, decoder: TokenDecoder | None = None) -> None:
        self._form = form
        self._seed = seed
        self._lowest_id, self._vocab_size = min(_LOWEST_ID, vocab_size // 2), vocab_size
        self._decoder = decoder

    def write(self, planned: PlannedRequest, number: int) -> Prompt:
        """The prompt of one request.

        Raises:
            ConfigError: the workload holds token ids, the server takes only text, and there is no decoder.
        """
        timed = planned.timed
        if planned.text is not None:
            return planned.text
        if timed.token_ids is not None:
            return self._own_ids(list(timed.token_ids))
        if self._form == "text" and self._decoder is None:
            return " ".join(_WORDS[draw % len(_WORDS)] for draw in self._draws(timed, number))
        return self._own_ids([self._lowest_id + draw % self._num_ids for draw in self._draws(timed, number)])

    @property
    def _num_ids(self) -> int:
        return self._vocab_size - self._lowest_id

    def _own_ids(self, token_ids: list[int]) -> Prompt:
        if self._form == "token_ids":
            return token_ids
        if self._decoder is None:
            raise ConfigError(
                "the workload holds token ids, and the server (or endpoint=chat) takes only text; name the model's "
                "tokenizer.json by tokenizer=, or use another workload"
            )
        return self._decoder.decode(token_ids)

    def _draws(self, timed: TimedRequest, number: int) -> list[int]:
        """Random numbers, as many as the prompt has tokens."""
        draws: list[int] = []
        for shared_id in timed.shared_ids:
            draws += self._random(_SHARED, shared_id, timed.shared_block_tokens)
        num_own = timed.num_prompt_tokens - len(draws)
        if num_own > 0:
            draws += self._random(_OWN, number, num_own)
        return draws[: timed.num_prompt_tokens]

    def _random(self, kind: int, key: int, count: int) -> list[int]:
        numbers: list[int] = np.random.default_rng([self._seed, kind, key]).integers(1 << 31, size=count).tolist()
        return numbers


def load_requests(planned: Iterator[PlannedRequest], writer: PromptWriter, endpoint: Endpoint) -> Iterator[LoadRequest]:
    """Requests ready to be sent, each made when it is asked for."""
    for number, request in enumerate(planned):
        timed = request.timed
        # Only where it says something: strict servers refuse fields that they do not know.
        extra = {"priority": timed.priority} if timed.priority else {}
        body = endpoint.streaming_body(writer.write(request, number), timed.num_output_tokens, extra)
        yield LoadRequest(number, timed.arrival_s, body, timed.num_output_tokens, timed.slo_factor)


def read_tokenizer(path: Path) -> TokenDecoder:
    """Reads a tokenizer.json, or that of a folder.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer: TokenDecoder = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other class
        raise ConfigError(f"tokenizer={path}: expected a tokenizer.json or its folder: {error}") from error
    return tokenizer
