"""Prompts by category through one engine, greedy: what decoding took, and what became of the drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import cycle, islice
from typing import Any, final

from tokenloom.errors import RequestError
from tokenloom.llm import LLM
from tokenloom.results import CompletionOutput
from tokenloom.sampling_params import SamplingParams
from tokenloom.text.chat_template import ChatTemplate

__all__ = ["CategoryRun", "SpecWork", "encode_categories", "run_category", "warm_up"]

_WARM_UP_TOKENS = 32
"""Output tokens of each request that warms up: steps enough to draft, and to verify, at every length."""
_WARM_UP_PROMPT = 128
"""Tokens of these requests, but for the longest prompt: reading many would take longer than it helps."""


@final
@dataclass(frozen=True, slots=True)
class SpecWork:
    """What every engine is given.

    Attributes:
        prompts: token ids by category.
        max_tokens: most output tokens; an end-of-sequence token ends an answer earlier.
        concurrency: requests that run at the same time.
        rehearse: run everything once before measuring.
    """

    prompts: Mapping[str, Sequence[list[int]]]
    max_tokens: int
    concurrency: int = 1
    rehearse: bool = False

    def warm_up_prompts(self) -> list[list[int]]:
        """As many prompts as run at a time, and one more: whole the longest, of others the end; each read backwards.

        Backwards, since a drafter that learns from earlier answers must not learn what it is measured with.
        """
        known = [prompt for prompts in self.prompts.values() for prompt in prompts]
        ends = [prompt[-_WARM_UP_PROMPT:] for prompt in islice(cycle(known), self.concurrency)]
        return [prompt[::-1] for prompt in (max(known, key=len), *ends)]


@final
@dataclass(frozen=True, slots=True)
class CategoryRun:
    """The prompts of one category, measured.

    Attributes:
        num_requests, num_failed, num_output_tokens: counts.
        wall_s: from the first request to the end of the last one.
        running_s: time from the first step of each request to its end, summed over requests.
        decode_s: time from the first tokens of each request to its last, summed over requests.
        num_decode_tokens: tokens that came in this time.
        num_decode_steps: steps in which they came, counted for each request.
        propose_s: time that proposing drafts took.
        num_proposals, num_draft_tokens, num_accepted_tokens: drafts verified, see `EngineStats`.
        tried_by_position, accepted_by_position: likewise.
        token_ids: the answers, in order.
    """

    num_requests: int
    num_failed: int
    num_output_tokens: int
    wall_s: float
    running_s: float
    decode_s: float
    num_decode_tokens: int
    num_decode_steps: int
    propose_s: float
    num_proposals: int
    num_draft_tokens: int
    num_accepted_tokens: int
    tried_by_position: dict[int, int]
    accepted_by_position: dict[int, int]
    token_ids: list[list[int]]

    @staticmethod
    def sum_of(runs: Iterable[CategoryRun]) -> CategoryRun:
        """Several categories as one."""
        total: dict[str, Any] = {}
        for run in runs:
            for name in (field.name for field in fields(CategoryRun)):
                value = getattr(run, name)
                if isinstance(value, dict):
                    table = total.setdefault(name, {})
                    for key, count in value.items():
                        table[key] = table.get(key, 0) + count
                else:
                    total[name] = total[name] + value if name in total else value
        return CategoryRun(**total)


def encode_categories(llm: LLM, categories: Mapping[str, Sequence[str]], *, chat: bool) -> dict[str, list[list[int]]]:
    """Token ids of the prompts; with `chat`, as questions in the model's chat template.

    Raises:
        RequestError: the model has no chat template, or a prompt cannot be rendered.
    """
    if not chat:
        return {name: [llm.tokenizer.encode(text) for text in texts] for name, texts in categories.items()}
    template = ChatTemplate.for_tokenizer(llm.tokenizer)
    return {
        name: [template.encode_chat(llm.tokenizer, [{"role": "user", "content": text}]) for text in texts]
        for name, texts in categories.items()
    }


def warm_up(llm: LLM, work: SpecWork, progress: Callable[[str, int], None]) -> None:
    """Runs what is not measured: what only happens once, compiling, growing memory, waking threads; and a rehearsal.

    Args:
        llm: a loaded model.
        work: what it is to run.
        progress: told the category of a rehearsal, and how many of its output tokens there are.

    Raises:
        RequestError: a prompt leaves no room for an answer.
    """
    _check_room(llm, work)
    params = SamplingParams(temperature=0.0, max_tokens=min(_WARM_UP_TOKENS, work.max_tokens), ignore_eos=True)
    llm.generate(work.warm_up_prompts(), params)
    for category in work.prompts if work.rehearse else ():
        run_category(llm, work, category, partial(progress, category))


def _check_room(llm: LLM, work: SpecWork) -> None:
    longest = max(len(prompt) for prompts in work.prompts.values() for prompt in prompts)
    if longest >= llm.engine.limits.max_model_len:
        raise RequestError(
            f"a prompt of {longest} tokens leaves no room for an answer in {llm.engine.limits.max_model_len}; raise "
            "model.max_model_len, or take it out of the file",
            "prompt",
        )


def run_category(llm: LLM, work: SpecWork, category: str, progress: Callable[[int], None]) -> CategoryRun:
    """Runs the prompts of one category with an empty prefix cache; `progress` is told how many tokens there are."""
    llm.engine.reset_prefix_cache()
    before = llm.engine.stats.snapshot()
    start_s = time.perf_counter()
    outputs = llm.generate(
        list(work.prompts[category]),
        SamplingParams(temperature=0.0, max_tokens=work.max_tokens),
        on_step=lambda: progress(llm.engine.stats.num_output_tokens - before.num_output_tokens),
    )
    wall_s = time.perf_counter() - start_s
    choices = [output.outputs[0] for output in outputs]
    return _measured(choices, wall_s, llm.engine.stats.since(before))


def _measured(choices: Sequence[CompletionOutput], wall_s: float, stats: Mapping[str, Any]) -> CategoryRun:
    good = [choice.metrics for choice in choices if choice.finish_reason != "error" and choice.metrics.token_times_s]
    return CategoryRun(
        num_requests=len(choices),
        num_failed=sum(choice.finish_reason == "error" for choice in choices),
        num_output_tokens=sum(len(choice.token_ids) for choice in choices),
        wall_s=wall_s,
        running_s=sum((times.e2e_s or 0.0) - (times.queue_s or 0.0) for times in good),
        decode_s=sum(times.token_times_s[-1] - times.token_times_s[0] for times in good),
        num_decode_tokens=sum(sum(times.tokens_per_chunk[1:]) for times in good),
        num_decode_steps=sum(len(times.tokens_per_chunk) - 1 for times in good),
        propose_s=stats["times_s"].get("propose", 0.0),
        num_proposals=stats["num_proposals"],
        num_draft_tokens=stats["num_draft_tokens"],
        num_accepted_tokens=stats["num_accepted_tokens"],
        tried_by_position=_without_zeros(stats["tried_by_position"]),
        accepted_by_position=_without_zeros(stats["accepted_by_position"]),
        token_ids=[choice.token_ids for choice in choices],
    )


def _without_zeros(counts: Mapping[int, int]) -> dict[int, int]:
    """What was counted: positions that only earlier categories reached are there, too."""
    return {position: count for position, count in counts.items() if count}
