"""One wrong letter in any key, with or without +, stops the start."""

from __future__ import annotations

import pytest

from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError

OVERRIDES = ["attention=native_cpu", "spec_decode=ngram"]


def misspellings(key: str) -> list[str]:
    """The key with one letter of its last word dropped, doubled, and replaced."""
    head, dot, last = key.rpartition(".")
    middle = len(last) // 2
    variants = (
        last[:middle] + last[middle + 1 :],
        last[:middle] + last[middle] + last[middle:],
        last[:middle] + ("x" if last[middle] != "x" else "y") + last[middle + 1 :],
    )
    return [f"{head}{dot}{variant}" for variant in variants]


def value_word(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def leaf_values() -> dict[str, str]:
    composed = compose_config(OVERRIDES)
    values = composed.to_dict()
    leaves: dict[str, str] = {}
    for key in composed.sources:
        value: object = values
        for part in key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        leaves[key] = value_word(value)
    return leaves


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_every_misspelt_leaf_key_fails(prefix: str) -> None:
    leaves = leaf_values()
    assert len(leaves) > 20
    wrong = {typo: value for key, value in leaves.items() for typo in misspellings(key)}
    with pytest.raises(ConfigError) as caught:
        compose_config([*OVERRIDES, *(f"{prefix}{typo}={value}" for typo, value in wrong.items())])
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{len(wrong)} settings are wrong:"
    refused = {line.removeprefix("  - ").partition("=")[0] for line in lines[1:] if "no such key" in line}
    assert refused == set(wrong)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_misspelt_leaf_key_alone_fails(prefix: str, number: int) -> None:
    key = list(leaf_values())[7 * number]
    typo = misspellings(key)[number]
    with pytest.raises(ConfigError, match=rf"^{typo}=1.*no such key"):
        compose_config([*OVERRIDES, f"{prefix}{typo}=1"])


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_every_misspelt_group_or_block_fails(prefix: str) -> None:
    groups = [key for key in compose_config().choices if "." not in key]
    typos = [typo for name in (*groups, "engine", "debug") for typo in misspellings(name)]
    assert len(typos) == 30
    for suffix in ("", ".key"):
        with pytest.raises(ConfigError) as caught:
            compose_config([f"{prefix}{typo}{suffix}=none" for typo in typos])
        lines = [line for line in str(caught.value).splitlines() if "no such key" in line]
        assert [line.removeprefix("  - ").partition("=")[0] for line in lines] == [f"{typo}{suffix}" for typo in typos]


def test_every_misspelt_leaf_names_the_right_key() -> None:
    keys = [key for key in leaf_values() if not key.endswith(".name")]
    typos = [misspellings(key)[2] for key in keys]
    with pytest.raises(ConfigError) as caught:
        compose_config([*OVERRIDES, *(f"+{typo}=1" for typo in typos)])
    lines = str(caught.value).splitlines()[1:]
    helped = [
        key for key, line in zip(sorted(keys), sorted(lines), strict=True) if f"{key}?" in line or f"{key} or" in line
    ]
    assert helped == sorted(keys)
