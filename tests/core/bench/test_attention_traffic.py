"""The formulas for attention's bytes, against a count of what is touched."""

from __future__ import annotations

from tokenloom.bench.attention_traffic import AttentionShapes, bytes_in_tiles, bytes_of_a_request, bytes_with_scores

SHAPES = AttentionShapes(num_heads=6, num_kv_heads=2, head_dim=5, item_bytes=2)
PAIR = 2 * (2 * 5 * 2)
QUERY_AND_OUT = 2 * (6 * 5 * 2)


def test_bytes_of_a_prompt_equal_a_count_of_what_is_touched() -> None:
    length = 11
    scores_and_weights = 2 * (6 * length * length * 4)  # each written, then read
    assert bytes_with_scores(length, length, SHAPES) == length * (QUERY_AND_OUT + PAIR) + 2 * scores_and_weights
    # Tiles of 4 positions end at 4, 8 and 11: each reads what lies before its end.
    assert bytes_in_tiles(length, length, SHAPES, 4) == length * QUERY_AND_OUT + (4 + 8 + 11) * PAIR
    assert bytes_in_tiles(length, length, SHAPES) == length * (QUERY_AND_OUT + PAIR)


def test_a_chunk_reads_what_is_cached_before_it() -> None:
    # Tokens 5 to 11 are new: tiles of 4 end at 9 and 11.
    assert bytes_in_tiles(6, 11, SHAPES, 4) == 6 * QUERY_AND_OUT + (9 + 11) * PAIR
    assert bytes_with_scores(6, 11, SHAPES) == 6 * QUERY_AND_OUT + 11 * PAIR + 4 * (6 * 6 * 11 * 4)


def test_a_request_is_its_prompt_and_a_step_for_each_token_that_is_read_again() -> None:
    steps = [bytes_in_tiles(8, 8, SHAPES), bytes_in_tiles(1, 9, SHAPES), bytes_in_tiles(1, 10, SHAPES)]
    assert bytes_of_a_request(8, 3, SHAPES, bytes_in_tiles) == sum(steps)
    assert bytes_of_a_request(8, 1, SHAPES, bytes_in_tiles) == steps[0]
