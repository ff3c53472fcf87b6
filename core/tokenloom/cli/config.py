"""`tokenloom config`: the resolved configuration, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_json, print_table
from tokenloom.compose import compose_config
from tokenloom.compose.overrides import value_word
from tokenloom.errors import ConfigError

__all__ = ["config"]


@click.command()
@overrides_argument
@config_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def config(overrides: tuple[str, ...], config_dir: Path | None, as_json: bool) -> None:
    """Show the configuration that the given overrides make, and where each value came from.

    For example: tokenloom config experiment=latency cache.block_size=32
    """
    for word in overrides:
        if word.startswith("server."):
            raise ConfigError(
                f"{word}: the keys of server are those of `tokenloom serve`; see `tokenloom explain server`"
            )
    composed = compose_config(overrides, config_dir=config_dir)
    values = composed.to_dict()
    if as_json:
        print_json({"config": values, "sources": dict(composed.sources), "choices": dict(composed.choices)})
        return
    rows = [(key, value_word(_at(values, key)), source) for key, source in composed.sources.items()]
    print_table(("key", "value", "from"), rows)


def _at(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value
