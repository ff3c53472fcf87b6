"""The inputs of a drafter's passes: positions, slots, lengths and tables of each group, and slots that nobody has."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan
from tokenloom.batch_state import BatchState
from tokenloom.draft_passes import DraftPasses
from tokenloom.errors import PluginContractError
from tokenloom.executors.drafting import head_shape
from tokenloom.executors.kv_memory import allocate_kv, draft_groups
from tokenloom.interfaces.attention import AttentionContext
from tokenloom.interfaces.draft_memory import DraftKVGroup
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.memory_plan import MemoryPlan
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.reference_backend import ReferenceBackend, ReferenceMetadata

CPU = torch.device("cpu")
TARGET = (KVGroupSpec(0, ("layers.0",), None, 64, pool_id=0), KVGroupSpec(1, ("layers.1",), 8, 64, pool_id=0))
NEEDED = (DraftKVGroup(2, 1, 4, num_heads=2), DraftKVGroup(1, 1, 4, lookahead=1, window=6, num_heads=2))
TABLES = {"a": ((5, 6), (7, 8), (1, 2, 3), (4, 5, 6)), "b": ((9,), (10,), (11,), (12,))}


def passes() -> DraftPasses:
    """Two target groups, two of the drafter's; requests "a" and "b" with blocks of 4 tokens."""
    attention = ReferenceBackend(AttentionContext(2, 1, 4, 4, torch.float32, CPU, 4, 16, 32))
    groups = draft_groups(NEEDED, attention, TARGET)
    kv = allocate_kv([2, 2, 3], (*TARGET, *groups), MemoryPlan((16, 16, 16), {}), attention, CPU)
    state = BatchState(4, 32, 4, 4, 50, CPU)
    new = NewRow([1, 2, 3], 3, SamplingParams(), 0, 0)
    for name, tables in TABLES.items():
        updates = tuple(BlockTableUpdate(0, 0, ids) for ids in tables)
        state.update([RowPlan(name, 0, 3, (), updates, samples=True, new=new)])
    return DraftPasses(state, groups, attention, kv, "spec_decode=test")


def test_groups_of_a_drafter_come_behind_the_targets_in_pools_of_their_own() -> None:
    attention = ReferenceBackend(AttentionContext(2, 1, 4, 4, torch.float32, CPU, 4, 16, 32))
    first, second = draft_groups(NEEDED, attention, TARGET)
    assert (first.group_id, first.pool_id, first.window, first.lookahead) == (2, 1, None, 0)
    assert (second.group_id, second.pool_id, second.window, second.lookahead) == (3, 2, 6, 1)
    assert first.page_bytes == 2 * second.page_bytes == 2 * attention.kv_cache_spec(1).page_bytes
    assert first.is_drafter
    assert second.is_drafter


def test_a_pass_has_positions_slots_and_tables_of_each_group() -> None:
    memory = passes()
    draft_pass = memory.begin(["b", "a"], [2, 7], [2, 3])
    assert draft_pass.positions.tolist() == [2, 3, 7, 8, 9]
    assert len(draft_pass.kv) == 3
    batches = [cast(ReferenceMetadata, metadata).batch for metadata in draft_pass.metadata]
    assert [batch.slot_mapping.tolist() for batch in batches] == [[46, 47, 11, 12, 13], [50, 51, 23, 24, 25]]
    assert [batch.block_table.tolist() for batch in batches] == [[[11, 0, 0], [1, 2, 3]], [[12, 0, 0], [4, 5, 6]]]
    assert [batch.window for batch in batches] == [None, 6]
    for batch in batches:
        assert batch.cu_seqlens_q.tolist() == [0, 2, 5]
        assert batch.seq_lens.tolist() == list(batch.seq_lens_cpu) == [4, 10]
        assert list(batch.query_lens_cpu) == [2, 3]
        assert batch.tree_mask is None


@pytest.mark.parametrize(
    ("requests", "starts", "counts", "detail"),
    [
        (["a", "b"], [0, 3], [1, 2], "slot 4 of b"),
        (["a"], [11], [2], "slot 12 of a"),
        (["a"], [0], [0], r"counts \[0\]"),
        (["a"], [-1], [1], r"starts \[-1\]"),
        (["a"], [30], [99], r"counts \[99\]"),
        ([], [], [], r"requests \[\]"),
    ],
)
def test_slots_that_a_request_does_not_have_are_refused(
    requests: list[str], starts: list[int], counts: list[int], detail: str
) -> None:
    with pytest.raises(PluginContractError, match=f"plugin spec_decode=test broke the rule.*{detail}"):
        passes().begin(requests, starts, counts)


def test_a_pass_over_trees_has_depths_and_a_mask() -> None:
    """Slots in order of the nodes, positions by depth; "b" has a chain, "a" two branches."""
    draft_pass = passes().begin(["b", "a"], [1, 6], [2, 4], [[-1, 0], [-1, -1, 1, 2]])
    batch = cast(ReferenceMetadata, draft_pass.metadata[0]).batch
    assert draft_pass.positions.tolist() == [1, 2, 6, 6, 7, 8]
    assert batch.slot_mapping.tolist() == [45, 46, 10, 11, 12, 13]
    assert batch.tree_mask is not None
    assert batch.tree_mask.int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 1],
    ]
    with pytest.raises(PluginContractError, match=r"for counts \[2\]"):
        passes().begin(["a"], [6], [2], [[-1]])


def test_layers_name_the_group_that_they_are_stored_in() -> None:
    assert [layer.group_id for layer in passes().stored_layers] == [2, 2, 3]


def test_heads_of_all_groups_must_be_alike() -> None:
    assert head_shape(NEEDED, "spec_decode=test") == (2, 1, 4)
    with pytest.raises(PluginContractError, match="heads have the same numbers and size"):
        head_shape((*NEEDED, DraftKVGroup(1, 1, 8)), "spec_decode=test")
