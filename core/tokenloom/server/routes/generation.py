"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tokenloom.server.chat_body import ChatBody
from tokenloom.server.chat_exchange import ChatExchange
from tokenloom.server.completion_body import CompletionBody
from tokenloom.server.completion_exchange import CompletionExchange
from tokenloom.server.generated_answer import GeneratedAnswer
from tokenloom.server.openapi_bodies import ERRORS, body_schema
from tokenloom.server.request_body import read_request
from tokenloom.server.service import Service

__all__ = ["generation_routes"]


def generation_routes(service: Service) -> APIRouter:
    """The endpoints that generate tokens."""
    router = APIRouter(tags=["generation"], responses=ERRORS)

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
    async def create_completion(request: Request) -> Response:
        """Continue text."""
        service.check_open()
        read = await read_request(service, request, CompletionBody)
        exchange = CompletionExchange(read.body, read.context, service)
        return GeneratedAnswer(service, exchange, read.headers)

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        service.check_open()
        read = await read_request(service, request, ChatBody)
        exchange = ChatExchange(read.body, read.context, service)
        return GeneratedAnswer(service, exchange, read.headers)

    return router
