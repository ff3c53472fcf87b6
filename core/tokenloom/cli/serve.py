"""`tokenloom serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

from pathlib import Path

import click

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.server.supervisor import Supervisor

__all__ = ["serve"]

_DEFAULTS = ("scheduler.max_queued_requests=512",)
"""Settings of a server where the user says nothing: offline everybody may wait, but clients that wait for ever give up."""


@click.command()
@overrides_argument
@config_dir_option
def serve(overrides: tuple[str, ...], config_dir: Path | None) -> int:
    """Serve the model over HTTP, as OpenAI's API does; Ctrl-C ends it.

    For example: tokenloom serve server.port=8001 scheduler.max_num_seqs=32
    """
    return Supervisor((*_DEFAULTS, *overrides), config_dir).run()
