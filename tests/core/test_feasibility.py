"""check_feasible: what can never run is refused at once, with the limit in the message."""

from __future__ import annotations

import pytest

from tokenloom.errors import RequestError
from tokenloom.feasibility import RequestLimits, check_feasible
from tokenloom.testing.stub_model import stub_request

LIMITS = RequestLimits(max_model_len=20, max_kv_tokens=12, vocab_size=50)


def test_longest_sequence_is_one_more_than_the_memory_holds() -> None:
    """The KV of the last token is never stored."""
    assert LIMITS.max_total_tokens == 13
    assert RequestLimits(10, 12, 50).max_total_tokens == 10


@pytest.mark.parametrize("prompt", [[0], [49], list(range(12)), [0, 49]])
def test_prompt_that_fits_is_accepted_whatever_its_max_tokens(prompt: list[int]) -> None:
    check_feasible(stub_request("r", prompt, max_total_tokens=13), LIMITS)


@pytest.mark.parametrize(
    ("limits", "prompt", "parts"),
    [
        (LIMITS, [], ["no tokens"]),
        (LIMITS, [3, 50], ["token id 50", "0..49"]),
        (LIMITS, [3, -1, 7], ["token id -1", "0..49"]),
        (LIMITS, [-1, 60], ["-1"]),
        (LIMITS, [2**31, 0], [str(2**31)]),
        (LIMITS, [1] * 13, ["13 tokens", "holds 12", "cache.num_blocks"]),
        (LIMITS, [1] * 20, ["20 tokens", "max_model_len=20"]),
        (RequestLimits(8, 12, 50), [1] * 8, ["8 tokens", "max_model_len=8"]),
    ],
)
def test_prompt_that_can_never_run_is_refused_with_the_limit(
    limits: RequestLimits, prompt: list[int], parts: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        check_feasible(stub_request("r", prompt, max_total_tokens=5), limits)
    assert caught.value.param == "prompt"
    assert all(part in str(caught.value) for part in parts)


def test_total_beyond_the_limits_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="max_total_tokens 14 exceeds 13"):
        check_feasible(stub_request("r", [1], max_total_tokens=14), LIMITS)
