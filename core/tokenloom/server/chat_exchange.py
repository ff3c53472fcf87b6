"""Requests of /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from tokenloom.errors import RequestError
from tokenloom.sampling_params import SamplingParams
from tokenloom.server.answer_parts import AnswerHead
from tokenloom.server.chat_answer import ChatAnswer, ChatOptions
from tokenloom.server.chat_body import ChatBody
from tokenloom.server.chat_messages import template_messages, template_variables
from tokenloom.server.exchange import Exchange, RequestContext, new_head
from tokenloom.server.generation import Job
from tokenloom.server.grammar_choice import choose_grammar
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.server.sampling import request_traits, sampling_params
from tokenloom.server.service import Service
from tokenloom.server.tool_choice import tool_use

__all__ = ["ChatExchange"]


@final
class ChatExchange(Exchange):
    """A conversation to be answered."""

    def __init__(self, body: ChatBody, context: RequestContext, service: Service) -> None:
        super().__init__(body, context)
        self.field_names["prompt"] = "messages"
        self._body = body
        self._service = service
        self._head = new_head("chatcmpl", context.model)
        self._params = self._sampling_params()
        self._traits = request_traits(body, context.tenant)
        self._grammar = choose_grammar(body)
        self._tools = tool_use(body)
        self._messages = template_messages(body.messages)
        self._variables = template_variables(
            body.chat_template_kwargs,
            self._tools.offered,
            add_generation_prompt=body.add_generation_prompt is not False,
            reasoning_effort=body.reasoning_effort,
        )

    @property
    def operation(self) -> str:
        return "chat"

    @property
    def head(self) -> AnswerHead:
        return self._head

    @property
    def num_choices(self) -> int:
        return self._params.n

    async def prepare(self) -> tuple[Job, ChatAnswer]:
        body = self._body
        text, reply_format = await self._service.text(), await self._service.reply_format()
        self._tools.check(reply_format, self._grammar)
        prompt = await text.encode_chat(
            self._messages,
            self._variables,
            num_body_bytes=self.context.num_body_bytes,
            max_chars=self._service.max_prompt_chars,
        )
        self._service.check_length([prompt], "messages")
        params = self._params
        if reply_format.special_marks and body.skip_special_tokens is None:
            params = params.with_changes(skip_special_tokens=False)
        ending = reply_format.ending(text.tokenizer, prompt)
        parsers = [reply_format.parser(ending, self._tools.callable_names) for _ in range(params.n)]
        grammar = self._tools.grammar(reply_format) or self._grammar
        if grammar is not None:
            grammar = replace(grammar, thoughts=reply_format.thoughts(ending))
        options = ChatOptions(
            logprobs=bool(body.logprobs),
            prompt_logprobs=body.prompt_logprobs is not None,
            token_ids=bool(body.return_token_ids),
            reasoning=body.include_reasoning is not False,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            usage_chunk=body.wants_usage_chunk,
            usage_always=body.wants_usage_always,
        )
        writer = LogprobWriter(text.tokenizer, skip_special_tokens=params.skip_special_tokens)
        answer = ChatAnswer(self._head, options, prompt, writer, parsers)
        return Job(self._head.id, [prompt], params, self._traits, grammar, arrival_s=self.context.arrival_s), answer

    def _sampling_params(self) -> SamplingParams:
        body = self._body
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("top_logprobs is allowed with logprobs=true only", "top_logprobs")
        limits = {value for value in (body.max_tokens, body.max_completion_tokens) if value is not None}
        if len(limits) > 1:
            raise RequestError(
                f"max_tokens={body.max_tokens} and max_completion_tokens={body.max_completion_tokens} mean the same; "
                "give one of them",
                "max_completion_tokens",
            )
        names = {"logprobs": "top_logprobs"}
        if body.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        return sampling_params(
            body,
            names,
            max_tokens=next(iter(limits), None),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
        )
