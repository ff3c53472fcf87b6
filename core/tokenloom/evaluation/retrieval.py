"""Retrieval from long contexts: a number hidden in generated text, at several depths and lengths, is asked for.

Source: Mohtashami and Jaggi, Landmark Attention (2023), section 4.2, the pass key task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.prompt_scores import check_length
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["Needle", "RetrievalPlan", "find_needles", "has_number", "retrieval_figures", "write_needles"]

_INTRODUCTION = "There is a pass key hidden in this text. Find it and remember it.\n"
_QUESTION = "\nWhat is the pass key? The pass key is"
_SUBJECTS = "The baker,A neighbour,My sister,The old captain,Our teacher,The gardener,A traveller,The night watchman"
_VERBS = "painted,repaired,carried,described,sold,borrowed,forgot,admired"
_OBJECTS = "a wooden chair,the blue boat,two heavy boxes,the garden gate,an old map,the kitchen clock,a pair of shoes"
_TIMES = "before the rain began,on the way home,after a long winter,in the early morning,without a word,last summer"
_LOWEST_KEY, _HIGHEST_KEY = 10_000, 99_999
_MAX_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class RetrievalPlan:
    """What to hide where.

    Attributes:
        lengths: of the prompts, in tokens; each prompt has so many or a few less.
        depths: of the hidden sentence, 0 for the beginning, 1 for the end.
        trials: prompts of each length and depth, each with its own text and number.
        seed: equal seeds hide equal numbers in equal text.
    """

    lengths: Sequence[int]
    depths: Sequence[float]
    trials: int
    seed: int


@dataclass(frozen=True, slots=True)
class Needle:
    """A prompt, and the digits that it asks for."""

    length: int
    depth: float
    token_ids: list[int]
    key: str


def write_needles(tokenizer: Tokenizer, plan: RetrievalPlan) -> list[Needle]:
    """All prompts, by length, depth and trial.

    Raises:
        ConfigError: a length has no room for the hidden sentence and the question.
    """
    return [
        _write(tokenizer, length, depth, random.Random(f"{plan.seed} {length} {depth} {trial}"))
        for length in plan.lengths
        for depth in plan.depths
        for trial in range(plan.trials)
    ]


def find_needles(llm: LLM, needles: Sequence[Needle], progress: Callable[[int, int], None]) -> list[bool]:
    """Whether the model's greedy answer has the number of each prompt, one prompt after another."""
    longest = max(len(needle.token_ids) for needle in needles)
    check_length(llm, longest + _MAX_ANSWER_TOKENS - 1, f"lengths=[..., {max(needle.length for needle in needles)}]")
    params = SamplingParams(temperature=0.0, max_tokens=_MAX_ANSWER_TOKENS)
    found: list[bool] = []
    for needle in needles:
        (output,) = llm.generate(needle.token_ids, params)
        found.append(has_number(output.outputs[0].text, needle.key))
        progress(len(found), len(needles))
    return found


def has_number(text: str, digits: str) -> bool:
    """Whether a number stands in a text, not as part of a longer one."""
    return re.search(rf"(?<!\d){digits}(?!\d)", text) is not None


def retrieval_figures(needles: Sequence[Needle], found: Sequence[bool], bootstrap: Bootstrap) -> dict[str, Any]:
    """Accuracy over all prompts, with its interval, by length, and by length and depth."""
    values = [float(is_found) for is_found in found]
    by_length: dict[str, Any] = {}
    for length in dict.fromkeys(needle.length for needle in needles):
        own = [(needle, value) for needle, value in zip(needles, values, strict=True) if needle.length == length]
        by_depth: dict[str, list[float]] = {}
        for needle, value in own:
            by_depth.setdefault(f"{needle.depth:g}", []).append(value)
        by_length[str(length)] = {
            **_accuracy([value for _, value in own], bootstrap),
            "by_depth": {depth: sum(right) / len(right) for depth, right in by_depth.items()},
        }
    return {**_accuracy(values, bootstrap), "num_prompts": len(values), "by_length": by_length}


def _accuracy(values: Sequence[float], bootstrap: Bootstrap) -> dict[str, Any]:
    interval = bootstrap.interval(values, [1.0] * len(values))
    return {"accuracy": sum(values) / len(values), "accuracy_interval": interval}


def _write(tokenizer: Tokenizer, length: int, depth: float, draws: random.Random) -> Needle:
    key = str(draws.randint(_LOWEST_KEY, _HIGHEST_KEY))
    needle = f"The pass key is {key}. Remember it: {key} is the pass key."
    room = length - len(_encode(tokenizer, [needle]))
    if room < 0:
        raise ConfigError(
            f"lengths=[{length}]: the hidden sentence and the question take {length - room} tokens; name greater ones"
        )
    filler: list[str] = []
    while room > 0:
        filler.append(_sentence(draws))
        room -= len(tokenizer.encode(f" {filler[-1]}", add_special_tokens=False))
    # Together they may take a few tokens more or less than one by one.
    while len(token_ids := _encode(tokenizer, _placed(filler, needle, depth))) > length:
        filler.pop()
    return Needle(length, depth, token_ids, key)


def _placed(filler: Sequence[str], needle: str, depth: float) -> list[str]:
    place = round(depth * len(filler))
    return [*filler[:place], needle, *filler[place:]]


def _encode(tokenizer: Tokenizer, sentences: Sequence[str]) -> list[int]:
    return tokenizer.encode(_INTRODUCTION + " ".join(sentences) + _QUESTION)


def _sentence(draws: random.Random) -> str:
    parts = (draws.choice(words.split(",")) for words in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES))
    return " ".join(parts) + "."
