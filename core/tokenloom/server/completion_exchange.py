"""Requests of /v1/completions."""

from __future__ import annotations

from typing import final

from tokenloom.errors import RequestError
from tokenloom.sampling_params import MAX_NUM_CHOICES, SamplingParams
from tokenloom.server.answer_parts import AnswerHead
from tokenloom.server.completion_answer import CompletionAnswer, CompletionOptions, EchoedPrompt
from tokenloom.server.completion_body import DEFAULT_MAX_TOKENS, CompletionBody
from tokenloom.server.exchange import Exchange, RequestContext, new_head
from tokenloom.server.generation import Job
from tokenloom.server.grammar_choice import choose_grammar
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.server.model_text import ModelText, Prompt
from tokenloom.server.sampling import request_traits, sampling_params
from tokenloom.server.service import Service

__all__ = ["CompletionExchange"]

MAX_CHOICES = 1024
"""Of one request, over all its prompts."""


@final
class CompletionExchange(Exchange):
    """Prompts to be continued.

    `max_tokens=0` with `echo` scores the prompts: the engine generates a token for each, which nobody sees.
    """

    def __init__(self, body: CompletionBody, context: RequestContext, service: Service) -> None:
        super().__init__(body, context)
        self._body = body
        self._service = service
        self._prompts: list[Prompt] = body.prompt
        self._head = new_head("cmpl", context.model)
        self._drops_output = body.max_tokens == 0
        if self._drops_output and not body.echo:
            raise RequestError("max_tokens=0 is allowed with echo only; ask for 1 token or more", "max_tokens")
        # What the engine gets instead, one token that is dropped, would have room for it.
        if self._drops_output and body.min_tokens is not None and body.min_tokens > 0:
            raise RequestError(
                f"min_tokens must not exceed max_tokens=0, got {body.min_tokens}; leave one of them out", "min_tokens"
            )
        self._params = self._sampling_params()
        self._traits = request_traits(body, context.tenant)
        self._grammar = choose_grammar(body)
        if self.num_choices > MAX_CHOICES:
            raise RequestError(
                f"the request asks for {self.num_choices} choices over all prompts, at most {MAX_CHOICES} are "
                f"allowed (and {MAX_NUM_CHOICES} for each prompt); send several requests",
                "prompt" if self._params.n == 1 else "n",
            )
        service.check_length(self._prompts)

    @property
    def operation(self) -> str:
        return "text_completion"

    @property
    def head(self) -> AnswerHead:
        return self._head

    @property
    def num_choices(self) -> int:
        return len(self._prompts) * self._params.n

    async def prepare(self) -> tuple[Job, CompletionAnswer]:
        body, params = self._body, self._params
        text = await self._service.text()
        token_ids = await text.encode(self._prompts, add_special_tokens=body.add_special_tokens is not False)
        self._service.check_length(token_ids)
        echoed = [await self._echoed(text, prompt, ids) for prompt, ids in zip(self._prompts, token_ids, strict=True)]
        options = CompletionOptions(
            n=params.n,
            echo=bool(body.echo),
            num_logprobs=body.logprobs,
            prompt_logprobs=body.prompt_logprobs is not None,
            token_ids=bool(body.return_token_ids),
            usage_chunk=body.wants_usage_chunk,
            usage_always=body.wants_usage_always,
        )
        writer = LogprobWriter(text.tokenizer, skip_special_tokens=params.skip_special_tokens)
        answer = CompletionAnswer(self._head, options, echoed, writer)
        job = Job(
            self._head.id,
            token_ids,
            params,
            self._traits,
            self._grammar,
            self._drops_output,
            arrival_s=self.context.arrival_s,
        )
        return job, answer

    def _sampling_params(self) -> SamplingParams:
        body = self._body
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1)
        prompt_logprobs = body.prompt_logprobs
        if body.echo and body.logprobs is not None:
            if prompt_logprobs is not None and prompt_logprobs != body.logprobs:
                raise RequestError(
                    f"with echo, prompt_logprobs={prompt_logprobs} must equal logprobs={body.logprobs}; leave it out",
                    "prompt_logprobs",
                )
            prompt_logprobs = body.logprobs
        return sampling_params(body, max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)

    async def _echoed(self, text: ModelText, prompt: Prompt, token_ids: list[int]) -> EchoedPrompt:
        if isinstance(prompt, str) or not self._body.echo:
            return EchoedPrompt(prompt if isinstance(prompt, str) else "", token_ids)
        return EchoedPrompt(
            await text.decode(token_ids, skip_special_tokens=self._params.skip_special_tokens), token_ids
        )
