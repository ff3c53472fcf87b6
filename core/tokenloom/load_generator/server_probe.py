"""What a server is before it is measured: its model, its version, whether it takes token ids as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from tokenloom.errors import ConfigError, RemoteServerError, did_you_mean
from tokenloom.load_generator.endpoint import Endpoint
from tokenloom.load_generator.http_client import LoadClient, StatusError
from tokenloom.load_generator.prompts import PromptForm

__all__ = ["ServerFacts", "probe_server"]

_REFUSALS_OF_A_FORM = frozenset({400, 406, 412, 415, 422, 500, 501})
"""What servers answer to a prompt of token ids that they do not take."""
_PROBE_TEXT = "Hello"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server said of itself.

    Attributes:
        endpoint: with the model's name.
        prompt_form: how prompts are sent.
        models: the names that it lists; empty if it has no such list.
        version: what its /version answers, or None.
    """

    endpoint: Endpoint
    prompt_form: PromptForm
    models: tuple[str, ...]
    version: Any

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result."""
        return {
            "base_url": self.endpoint.base_url,
            "endpoint": self.endpoint.api,
            "model": self.endpoint.model,
            "models": list(self.models),
            "version": self.version,
            "prompt_form": self.prompt_form,
            "extra_body": dict(self.endpoint.extra_body or {}),
        }


async def probe_server(client: LoadClient, prompt_form: PromptForm | None, token_ids: Sequence[int]) -> ServerFacts:
    """Asks what is there, and sends a first request.

    Args:
        client: its endpoint's model may be "", for the first that the server lists.
        prompt_form: as the user wants it; None tries token ids first, where the API knows them.
        token_ids: some legal ones.

    Raises:
        RemoteServerError: the server cannot be reached, or refuses a plain request.
        ConfigError: no model is named and the server lists none; or it lacks the one that is.
    """
    models = await _models(client)
    endpoint = replace(client.endpoint, model=_chosen(client.endpoint.model, models))
    client = client.at(endpoint)
    form = prompt_form
    if form is None and endpoint.api == "completions" and await _takes(client, list(token_ids)):
        form = "token_ids"
    else:
        form = form or "text"
        prompt = list(token_ids) if form == "token_ids" else _PROBE_TEXT
        await client.complete(endpoint.plain_body(prompt, 1))
    return ServerFacts(endpoint, form, models, await _version(client))


async def _models(client: LoadClient) -> tuple[str, ...]:
    try:
        answer = await client.get(f"{client.endpoint.base_url}/models")
    except StatusError as error:
        if error.status in (401, 403):
            raise ConfigError(f"{error}; give the key by api_key=") from error
        if not client.endpoint.model:
            raise ConfigError(
                f"{error.url} answered {error.status}; is the path of the URL right? If this server lists no models, "
                "name one by model="
            ) from error
        return ()
    rows = answer.get("data")
    names = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(name for name in names if isinstance(name, str))


def _chosen(model: str, models: Sequence[str]) -> str:
    if not model and not models:
        raise ConfigError("the server lists no models; name one by model=")
    if model and models and model not in models:
        raise ConfigError(f"model={model}: the server has {', '.join(models)}.{did_you_mean(model, models)}")
    return model or models[0]


async def _takes(client: LoadClient, token_ids: list[int]) -> bool:
    try:
        await client.complete(client.endpoint.plain_body(token_ids, 1))
    except StatusError as error:
        if error.status in _REFUSALS_OF_A_FORM:
            return False
        raise
    return True


async def _version(client: LoadClient) -> Any:
    """Not every server has one, and none of the API's rules says where."""
    parts = urlsplit(client.endpoint.base_url)
    try:
        return (await client.get(f"{parts.scheme}://{parts.netloc}/version")).get("version")
    except RemoteServerError:
        return None
