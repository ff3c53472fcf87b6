"""Windows of a text's tokens, and which of their tokens count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import ConfigError

__all__ = ["Window", "WindowPlan", "cut_windows"]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """How a text is cut.

    Attributes:
        size: tokens of a window.
        stride: tokens from the start of one window to that of the next; at most `size`.
        limit: the most windows; None for all.
    """

    size: int
    stride: int
    limit: int | None

    def __post_init__(self) -> None:
        """Raises ConfigError if tokens between two windows would be skipped."""
        if self.stride > self.size:
            raise ConfigError(
                f"stride={self.stride} would skip tokens: it is at most window={self.size}; leave it out for windows "
                "side by side"
            )


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a text.

    Attributes:
        start: place of its first token in the text.
        token_ids: all of its tokens.
        first_scored: index in `token_ids` of the first token that counts; the ones before it are context only.

        text    |<------ start ------>|<--------------- size ----------------->|
                                      |<- first_scored ->|<-- these count ---->|
    """

    start: int
    token_ids: Sequence[int]
    first_scored: int

    @property
    def num_scored(self) -> int:
        """Tokens that count."""
        return len(self.token_ids) - self.first_scored


def cut_windows(token_ids: Sequence[int], plan: WindowPlan) -> list[Window]:
    """Cuts a text into windows of equal size; what is left at its end is dropped.

    Every token counts once, in the first window that holds it with a token before it. With a stride as long as a window
    the first token of each window has no context and does not count; that is how GPTQ, AWQ and SmoothQuant report
    perplexity. With a shorter one only the very first token of the text does not, and all others but those of the first
    window have `size - stride` tokens of context at least.

    Raises:
        ConfigError: the text is shorter than a window.
    """
    size, stride = plan.size, plan.stride
    if len(token_ids) < size:
        raise ConfigError(
            f"window={size}: the text has only {len(token_ids)} tokens; name a longer one, or a shorter window"
        )
    starts = range(0, len(token_ids) - size + 1, stride)[: plan.limit]
    return [
        Window(start, token_ids[start : start + size], 1 if start == 0 else max(1, size - stride)) for start in starts
    ]
