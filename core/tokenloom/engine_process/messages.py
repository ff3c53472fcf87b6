"""What crosses between front ends and the engine's process, as msgpack. Every message is a tagged struct.

front end -> engine    Hello, Submit, Abort, Truncate, Call
supervisor -> engine   FrontEndGone, Stop
engine -> front end    EngineInfo (answers Hello), Outputs, Refused, Reply, Failed
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.fault import Fault
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.request_factory import RequestTraits
from tokenloom.sampling_params import SamplingParams

__all__ = [
    "GRAMMAR_PARAM",
    "Abort",
    "Call",
    "EngineInfo",
    "Failed",
    "FromEngine",
    "FrontEndGone",
    "GrammarSpec",
    "Hello",
    "Outputs",
    "Refused",
    "Reply",
    "Stop",
    "Submit",
    "ToEngine",
    "Truncate",
]

GRAMMAR_PARAM = "response_format"
"""`Fault.param` where the constraint is at fault, whichever field of a client's body it came from."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a front end; answered with `EngineInfo`."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A prompt to complete.

    Attributes:
        request_id: unique among all front ends. Of n > 1 choices, the i-th one's outputs bear `request_id-i`.
        prompt_token_ids: what the model sees.
        params: how to sample.
        traits: what policies may know; its `constraint` is None, `grammar` stands for it.
        grammar: structured output, or None.
        bad_words: what `params.bad_words` is in tokens.
        arrival_s: when it came, on the clock that all processes of a machine share (`MonotonicClock`).
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    traits: RequestTraits
    grammar: GrammarSpec | None = None
    bad_words: list[list[int]] = []
    arrival_s: float | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Ends all choices of submissions; ids that are unknown or have ended are ignored. Nothing is answered."""

    request_ids: list[str]


class Truncate(msgspec.Struct, frozen=True, tag="truncate"):
    """Ends one choice at a stop string, keeping its first `num_output_tokens` tokens; ignored once it has ended."""

    request_id: str
    num_output_tokens: int
    stop_reason: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A question or command beside the requests, answered by a `Reply`; see `EngineLoop` for the operations."""

    call_id: int
    operation: str
    arguments: dict[str, Any] = {}


class FrontEndGone(msgspec.Struct, frozen=True, tag="gone"):
    """A front end has died: what it had submitted is aborted, and what still comes from it is dropped, so its name is
    never used again. Sent by whoever watches it."""

    front_end: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The engine ends after the step that it is in."""


class EngineInfo(msgspec.Struct, frozen=True, tag="info"):
    """What a front end must know of the engine.

    Attributes:
        model_path: file or folder of the model.
        max_model_len: most tokens of a sequence.
        max_num_seqs: most running requests.
        max_queued_requests: most that wait; None: no limit.
        block_size: tokens per KV block.
        plugins: kind -> name of the plugin chosen.
        config: the resolved configuration, as plain data.
        tokenizer_file: where the engine has written the tokenizer down; None: it must be read from the model.
    """

    model_path: str
    max_model_len: int
    max_num_seqs: int
    max_queued_requests: int | None
    block_size: int
    plugins: dict[str, str]
    config: dict[str, Any]
    tokenizer_file: str | None = None


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """The news of one step for one front end, in the order in which the rows landed."""

    outputs: list[EngineOutput]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A submission that the engine did not take; none of its choices runs.

    Attributes:
        request_id: of the submission.
        fault: why not.
    """

    request_id: str
    fault: Fault


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a `Call`: a result, or what went wrong."""

    call_id: int
    result: Any = None
    fault: Fault | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot go on; every request in flight is lost. The process ends after this message."""

    message: str


ToEngine = Hello | Submit | Abort | Truncate | Call | FrontEndGone | Stop
FromEngine = EngineInfo | Outputs | Refused | Reply | Failed
