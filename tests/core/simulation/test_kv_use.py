"""The share of KV memory that holds tokens, in a replay small enough to count."""

from __future__ import annotations

import pytest

from tokenloom.compose import compose_config
from tokenloom.simulation.kv_use import KVUse
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.replay import simulate
from tokenloom.simulation.timed_request import TimedRequest

WORDS = ("executor=simulated", "model.max_model_len=128", "cache.num_blocks=33", "cache.block_size=16")


@pytest.mark.parametrize(("cache", "num_held"), [("none", 64), ("contiguous", 128)])
def test_slots_are_counted_as_held_and_as_used(cache: str, num_held: int) -> None:
    requests = [TimedRequest(0.0, 49, 12)]  # samples at step 8: 49 prompt tokens and 7 outputs are computed
    config = compose_config([*WORDS, f"cache={cache}"]).engine
    use = simulate(config, requests, SloTargets(1.0, 1.0), measures_kv_use=True).result["kv_use"]
    assert use["used_share"] == pytest.approx(56 / 512)
    assert use["used_share_peak"] == pytest.approx(56 / 512)
    assert use["internal"] == pytest.approx(1 - 56 / num_held)


def test_it_is_left_out_unless_asked_for() -> None:
    config = compose_config([*WORDS, "cache=none"]).engine
    assert "kv_use" not in simulate(config, [TimedRequest(0.0, 4, 2)], SloTargets(1.0, 1.0)).result


def test_nothing_sampled_is_no_number() -> None:
    assert set(KVUse().summary().values()) == {None}
