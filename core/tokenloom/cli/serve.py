"""`tokenloom serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.errors import ConfigError
from tokenloom.server.settings import ServerSettings
from tokenloom.server.supervisor import Supervisor

__all__ = ["serve"]

_DEFAULTS = ("scheduler.max_queued_requests=512",)
"""What a server sets where the user says nothing: offline everybody may wait, clients of a server would give up."""


_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class _ServeCommand(click.Command):
    """Says how options of other servers are written here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            key = f"server.{name}" if name in ServerSettings.model_fields else "key"
            raise click.UsageError(
                f"no such option {error.option_name}; settings are written {key}=value, e.g. server.port=8001", ctx
            ) from None


@click.command(cls=_ServeCommand)
@overrides_argument
@config_dir_option
def serve(overrides: tuple[str, ...], config_dir: Path | None) -> int:
    """Serve the model over HTTP, as OpenAI's API does; Ctrl-C ends it.

    For example: tokenloom serve server.port=8001 scheduler.max_num_seqs=32
    """
    for word in overrides:
        if _REPOSITORY.fullmatch(word):
            source = f"model={word}" if Path(word).exists() else f"model=hf:{word}"
            raise ConfigError(f"{word!r} is not an override; name the model by {source}")
    return Supervisor((*_DEFAULTS, *overrides), config_dir).run()
