"""Conversations that the target holds with itself: it goes on from the first words of questions, then answers them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.drafter_training.prompt_seeds import DOCUMENT_TASKS, document_requests, question_seeds
from tokenloom.errors import RequestError
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams
from tokenloom.text.chat_template import ChatTemplate

__all__ = ["Conversation", "ConversationMaker", "ConversationPlan"]

_DOCUMENT_SHARE = 0.25
_MAX_OTHERS = 3


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """One question and its answer.

    Attributes:
        token_ids: of both, the chat template's marks and the answer's end included.
        num_prompt_tokens: how many of them come before the answer.
    """

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


@final
@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """What to generate.

    Attributes:
        seed: of the choice of seeds and of all sampling.
        answer_tokens: most tokens of one answer; its end-of-sequence token ends it earlier.
        greedy_share: share of the answers that are greedy; the others are sampled at `temperature`.
        temperature: of those.
        question_tokens: most tokens that the target adds to the first words of a question.
        document_tokens: most tokens of a document that a question is about.
    """

    seed: int
    answer_tokens: int = 192
    greedy_share: float = 0.75
    temperature: float = 0.7
    question_tokens: int = 72
    document_tokens: int = 360


@final
class ConversationMaker:
    """Makes conversations batch by batch; batch i is the same whatever was made before.

    Args:
        llm: the target.
        plan: what to generate.
    """

    def __init__(self, llm: LLM, plan: ConversationPlan) -> None:
        self._llm = llm
        self._plan = plan
        self._template = ChatTemplate.for_tokenizer(llm.tokenizer)

    def make(self, batch: int, count: int, on_step: Callable[[], None] | None = None) -> list[Conversation]:
        """`count` conversations; fewer where a question about documents would be longer than the model takes.

        Args:
            batch: its number.
            count: how many conversations it has.
            on_step: called after every step of the engine.

        Raises:
            RequestError: the model has no chat template, or one that does not quote messages as they are.
        """
        rng = random.Random(f"{self._plan.seed} {batch}")
        num_documents = round(count * _DOCUMENT_SHARE)
        requests = document_requests(num_documents, rng)
        seeds = question_seeds(count - num_documents, rng) + [question for _, question in requests]
        questions = self._written([self._open_turn(seed) for seed in seeds], self._plan.question_tokens, rng, on_step)
        asked = [self._chat(request) for request, _ in requests]
        documents = [text.strip() for text in self._written(asked, self._plan.document_tokens, rng, on_step)]
        texts = [(seed + rest).strip() for seed, rest in zip(seeds, questions, strict=True)]
        plain, about = texts[: count - num_documents], texts[count - num_documents :]
        tasks = [
            rng.choice(DOCUMENT_TASKS).format(
                document=document, question=question, passages=_passages(document, documents, rng)
            )
            for document, question in zip(documents, about, strict=True)
        ]
        return self._answered([self._chat(text) for text in (*plain, *tasks)], rng, on_step)

    def _written(
        self, prompts: Sequence[list[int]], max_tokens: int, rng: random.Random, on_step: Callable[[], None] | None
    ) -> list[str]:
        """What the target goes on with, sampled."""
        if not prompts:
            return []
        params = [
            SamplingParams(temperature=0.85, top_p=0.95, max_tokens=max_tokens, seed=rng.getrandbits(32))
            for _ in prompts
        ]
        return [output.outputs[0].text for output in self._llm.generate(prompts, params, on_step=on_step)]

    def _answered(
        self, prompts: Sequence[list[int]], rng: random.Random, on_step: Callable[[], None] | None
    ) -> list[Conversation]:
        plan = self._plan
        # States are taken by asking for one token more.
        limit = self._llm.engine.limits.max_model_len - 1
        prompts = [prompt for prompt in prompts if len(prompt) < limit]
        params = [
            SamplingParams(
                temperature=0.0 if rng.random() < plan.greedy_share else plan.temperature,
                max_tokens=plan.answer_tokens,
                seed=rng.getrandbits(32),
            )
            for _ in prompts
        ]
        outputs = self._llm.generate(prompts, params, on_step=on_step)
        return [
            Conversation((*output.prompt_token_ids, *output.outputs[0].token_ids)[:limit], len(output.prompt_token_ids))
            for output in outputs
            if output.outputs[0].finish_reason in ("stop", "length")
        ]

    def _chat(self, text: str) -> list[int]:
        return self._template.encode_chat(self._llm.tokenizer, [{"role": "user", "content": text}])

    def _open_turn(self, start: str) -> list[int]:
        """The chat up to the first words of the user's turn, which stays open."""
        start = start.rstrip()
        rendered = self._template.render([{"role": "user", "content": start}], add_generation_prompt=False)
        place = rendered.rfind(start)
        if place < 0:
            raise RequestError(
                f"the model's chat template does not quote the user's words {start!r}; choose a model whose does"
            )
        return self._llm.tokenizer.encode(rendered[: place + len(start)], add_special_tokens=False)


def _passages(document: str, others: Sequence[str], rng: random.Random) -> str:
    """A document among some others, in any order and numbered."""
    chosen = [document, *rng.sample(others, min(len(others), rng.randint(1, _MAX_OTHERS)))]
    rng.shuffle(chosen)
    return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(chosen, 1))
