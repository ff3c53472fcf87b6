"""From Hydra groups, override strings and Python keywords to one validated EngineConfig.

`compose_config` is the whole interface. In call order: overrides.py reads what the user wrote, hydra_session.py lends a
config loader, layers.py stacks config files and settings, validation.py turns the values into pydantic objects.
"""

from __future__ import annotations

from tokenloom.compose.composed import ComposedConfig, compose_config
from tokenloom.compose.conf_folders import builtin_conf_dir
from tokenloom.compose.keywords import KEYWORDS

__all__ = ["KEYWORDS", "ComposedConfig", "builtin_conf_dir", "compose_config"]
