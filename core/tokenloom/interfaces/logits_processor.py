"""Contract `logits_processor` 1.0: changes logits before a token is chosen. Each request names the processors it wants.

    SamplingParams(logits_processors={"no_repeat_ngram": {"size": 3}})

The name is looked up among the registered plugins of this kind; the settings are validated by its Config when the
request is made. A request may name several; they run in the order given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = [
    "CONTRACT_VERSION",
    "LogitsProcessor",
    "LogitsProcessorConfig",
    "LogitsProcessorContext",
    "LogitsRow",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["logits_processor"]


@dataclass(frozen=True, slots=True)
class LogitsProcessorContext:
    """What a processor knows when it is built.

    Attributes:
        vocab_size: V, width of the logits.
        device: where the logits are.
    """

    vocab_size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """One position whose next token is about to be chosen.

    Attributes:
        token_ids: int32 [num_tokens], prompt and output up to this position, a read-only view valid in this call. Where
            drafts are verified, those before the position stand at the end as if they were output.
        num_prompt_tokens: how many of them are the prompt.
        settings: the request's settings for this plugin, an instance of its Config.
    """

    token_ids: npt.NDArray[np.int32]
    num_prompt_tokens: int
    settings: LogitsProcessorConfig


class LogitsProcessorConfig(PluginConfig):
    """Base of logits processor Configs: the settings of one request. Needs no YAML, for no config group has it."""

    @abstractmethod
    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        """Constructs the processor.

        Called once in an engine, on the settings of whichever request is the first to name the plugin. The object then
        serves all requests, so nothing of these settings may enter it: each row brings its own.
        """


class LogitsProcessor(ABC):
    """Changes logits. One object per engine and plugin, called next to the weights, from one thread.

    Where it is applied: on fp32 logits, behind penalties and logit_bias, before everything that forbids tokens for good
    (allowed_token_ids, bad_words, min_tokens, the logits constraint) and before temperature and the filters. So a
    processor sees no mask, and cannot lift one.

    What an implementation promises: it keeps no state. A row's result depends on that row's logits and `LogitsRow`
    alone, never on other rows, on earlier calls or on the clock. The core relies on it: it asks for positions behind
    drafts that may be rejected, asks again after a preemption, and asks row by row to find out which one failed.

    It writes neither NaN nor +inf. A -inf that it finds stays: what an earlier processor of the request has forbidden,
    no later one allows.

    What the core does when a row fails, by an exception, a NaN or a +inf: the request ends with an error that names the
    plugin, if that position was reached. The other requests go on.
    """

    @abstractmethod
    def process(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        """Changes the logits of some positions in place.

        Args:
            logits: fp32 [R, V], contiguous, on the context's device; row i belongs to rows[i]. -inf forbids a token, a
                row without a finite logit ends its request with an error.
            rows: R positions of the requests that named this plugin, R >= 1.
        """
