"""POST /tokenize and /detokenize, with the bodies of vLLM's endpoints of these names."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from tokenloom.server.answer_parts import json_bytes
from tokenloom.server.chat_body import MAX_MESSAGES, MAX_TOOLS, Messages, TemplateVariables, Tools
from tokenloom.server.chat_messages import template_messages, template_variables
from tokenloom.server.completion_body import MAX_PROMPT_IDS
from tokenloom.server.generation_body import StrictBody
from tokenloom.server.model_text import ModelText
from tokenloom.server.openapi_bodies import ERRORS, body_schema
from tokenloom.server.request_body import read_request
from tokenloom.server.service import Service

__all__ = ["DetokenizeBody", "TokenizeBody", "text_routes"]


class TokenizeBody(StrictBody):
    """A prompt or a conversation."""

    model: str | None = None
    prompt: str | None = Field(default=None, description="Text; give this or messages.")
    messages: Messages | None = Field(default=None, max_length=MAX_MESSAGES, description="A conversation.")
    tools: Tools | None = Field(default=None, max_length=MAX_TOOLS, description="With messages: as in a chat.")
    add_special_tokens: bool | None = Field(default=None, description="With prompt: put BOS and the like around it.")
    add_generation_prompt: bool | None = Field(default=None, description="With messages: end with the answer's header.")
    chat_template_kwargs: TemplateVariables | None = Field(default=None, description="With messages: variables.")
    return_token_strs: bool | None = Field(default=None, description="The tokens as the vocabulary writes them, too.")

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(StrictBody):
    """Token ids."""

    model: str | None = None
    tokens: list[int] = Field(fail_fast=True, max_length=MAX_PROMPT_IDS, description="Token ids of this model.")
    skip_special_tokens: bool | None = Field(default=None, description="Leave special tokens out; false by default.")


def text_routes(service: Service) -> APIRouter:
    """The endpoints that turn text into tokens and back; they need no engine step."""
    router = APIRouter(tags=["text"], responses=ERRORS)

    @router.post("/tokenize", openapi_extra=body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Token ids of a prompt or a conversation."""
        service.check_serving()
        read = await read_request(service, request, TokenizeBody)
        text = await service.text_apart()
        tokens = await _encode(service, text, read.body, read.context.num_body_bytes)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": service.info.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        if read.body.return_token_strs:
            answer["token_strs"] = [text.tokenizer.id_to_token(token_id) for token_id in tokens]
        return _json(answer)

    @router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        service.check_serving()
        read = await read_request(service, request, DetokenizeBody)
        service.check_length([read.body.tokens], "tokens", num_to_come=0)
        text = await service.text_apart()
        skips = read.body.skip_special_tokens is True
        return _json({"prompt": await text.decode(read.body.tokens, skip_special_tokens=skips, param="tokens")})

    return router


async def _encode(service: Service, text: ModelText, body: TokenizeBody, num_body_bytes: int) -> list[int]:
    if body.prompt is not None:
        service.check_length([body.prompt])
        (tokens,) = await text.encode([body.prompt], add_special_tokens=body.add_special_tokens is not False)
        return tokens
    offered = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    variables = template_variables(
        body.chat_template_kwargs, offered, add_generation_prompt=body.add_generation_prompt is not False
    )
    messages, max_chars = template_messages(body.messages or []), service.max_prompt_chars
    return await text.encode_chat(messages, variables, num_body_bytes=num_body_bytes, max_chars=max_chars)


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")
