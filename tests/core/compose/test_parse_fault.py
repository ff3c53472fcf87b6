"""What cannot be parsed is named in plain words, never in those of the parser."""

from __future__ import annotations

import pytest

from tokenloom.compose import compose_config
from tokenloom.compose.sweep import expand_sweep
from tokenloom.errors import ConfigError

FAULTS = [
    ("scheduler=fcfs,", "a comma has no value after it"),
    ("scheduler=,fcfs", "a comma has no value before it"),
    ("scheduler=fcfs,,sjf", "a comma has no value before it"),
    ("quant.skip=[a,]", "a comma has no value after it"),
    ("quant.skip=[a,,b]", "a comma has no value before it"),
    ("quant.skip=[a", "'[' is not closed"),
    ("quant.skip=[a}", "'}' closes nothing"),
    ("quant.skip=a]", "']' closes nothing"),
    ("engine={seed:1", "'{' is not closed"),
    ("engine={seed}", "a mapping {key:value}"),
    ("engine.seed=range(", "'(' is not closed"),
    ("engine.seed='1", "the quote ' is not closed"),
    ('engine.seed="1', 'the quote " is not closed'),
    ("engine.seed=it's", "the quote ' is not closed"),
    ("engine.seed=a#b", "'#' has no meaning there"),
    ("engine.seed=a=b", "'=' has no meaning there"),
    ("engine.seed=a;b", "';' has no meaning there"),
    ("engine.seed=(1)", "'(' has no meaning there"),
    ("engine.seed=twice(1)", "there is no function 'twice'"),
    ("engine seed=1", "'engine seed' is no key"),
    ("1seed=1", "'1seed' is no key"),
]


@pytest.mark.parametrize(("override", "reason"), FAULTS)
def test_what_cannot_be_parsed_is_named_in_plain_words(override: str, reason: str) -> None:
    for point in expand_sweep([override]):  # commands that sweep leave it to the composer
        with pytest.raises(ConfigError) as caught:
            compose_config(point.overrides)
        message = str(caught.value)
        assert message.startswith(f"override {override}: cannot be parsed, ")
        assert reason in message
        for word in ("<EOF>", "BRACE", "UNQUOTED", "mismatched", "token recognition", "viable", "Hydra"):
            assert word not in message


@pytest.mark.parametrize("override", ["output='a,'", 'output="[,"', r"output='it\'s,'"])
def test_marks_inside_quotes_are_no_fault(override: str) -> None:
    with pytest.raises(ConfigError, match="no such key"):
        compose_config([override])
