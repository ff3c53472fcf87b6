"""The installed package: found by its entry point, and YAML files that state the Configs' own defaults."""

from __future__ import annotations

import pytest
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.plugins import default_registry

OWN = [("scheduler", "shortest_prompt"), ("spec_decode", "bigram")]


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_the_plugin_is_installed_and_accepted(kind: str, name: str) -> None:
    plugin = default_registry().get(kind, name)
    assert (plugin.package, plugin.refusal) == ("tokenloom-example-plugins", None)


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_the_yaml_lists_every_field_with_its_default(kind: str, name: str) -> None:
    composed = compose_config([f"{kind}={name}"])
    fields = default_registry().load_config_class(kind, name).model_fields
    nested = {sub_kind.rpartition(".")[2] for sub_kind in default_registry().get(kind, name).info.sub_kinds}
    block = composed.to_dict()[kind]
    for field in set(fields) - nested:
        assert block[field] == fields[field].default
        assert composed.sources[f"{kind}.{field}"] == f"tokenloom-example-plugins:{kind}/{name}.yaml"


@pytest.mark.parametrize("rate", ["0", "-1", "null"])
def test_a_rate_that_lets_requests_starve_is_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.ageing_tokens_per_s"):
        compose_config(["scheduler=shortest_prompt", f"scheduler.ageing_tokens_per_s={rate}"])
