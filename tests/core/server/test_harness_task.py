"""A multiple-choice task over HTTP, asked as lm-evaluation-harness's `local-completions` asks: log-likelihoods and
greedy choices are those that the formulas say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.core.models.llama_formulas import reference_logits
from tests.core.server.served_app import ServedApp

DOCUMENTS = [
    ("Question: Which animal barks?\nAnswer:", ["a cat", "a dog", "the old boat"]),
    ("Two and two make", ["four", "five"]),
    ("x", ["y", "zzzz", "z"]),
]
BATCH = 3


def requests() -> list[tuple[list[int], int]]:
    """Token ids of context and choice behind a space, and how many of them are the context's; a token is a byte."""
    return [
        (list(f"{context} {choice}".encode()), len(context.encode()))
        for context, choices in DOCUMENTS
        for choice in choices
    ]


def scored(choice: dict[str, Any], num_context: int) -> tuple[float, bool]:
    """What the harness makes of an answer: all but the token that was generated, behind the context."""
    shown = choice["logprobs"]
    logprobs = shown["token_logprobs"][num_context:-1]
    tops = zip(shown["tokens"][num_context:-1], shown["top_logprobs"][num_context:-1], strict=True)
    return sum(logprobs), all(token == max(top, key=top.get) for token, top in tops)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_task_is_scored_as_the_formulas_say(api: ServedApp, served_folder: Path, as_text: bool) -> None:
    """Token ids in batches, or one text after another, as `tokenized_requests` decides."""
    own = requests()
    step = 1 if as_text else BATCH
    found: list[tuple[float, bool]] = []
    for first in range(0, len(own), step):
        batch = own[first : first + step]
        prompt: Any = bytes(batch[0][0]).decode() if as_text else [token_ids for token_ids, _ in batch]
        answer = api.post(
            "/v1/completions",
            {
                "model": "tiny",
                "prompt": prompt,
                "temperature": 0,
                "max_tokens": 1,
                "logprobs": 1,
                "seed": 1234,
                "echo": True,
            },
        )
        assert answer.status == 200, answer.body
        choices = sorted(answer.json["choices"], key=lambda choice: int(choice["index"]))
        found += [scored(choice, num_context) for choice, (_, num_context) in zip(choices, batch, strict=True)]
    for (total, is_greedy), (token_ids, num_context) in zip(found, own, strict=True):
        logprobs = reference_logits(served_folder, token_ids).log_softmax(-1)
        rows = range(num_context, len(token_ids))
        assert total == pytest.approx(sum(float(logprobs[row - 1][token_ids[row]]) for row in rows), abs=1e-3)
        assert is_greedy == all(int(logprobs[row - 1].argmax()) == token_ids[row] for row in rows)
