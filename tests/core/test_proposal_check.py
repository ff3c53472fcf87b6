"""Each rule of proposals is refused by name, with the request and the value."""

from __future__ import annotations

import pytest
import torch

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.spec_decode import DraftBatch, Proposal
from tokenloom.proposal_check import check_proposals

VOCAB = 10


def check(proposals: list[Proposal], max_drafts: int = 3, *, chain_only: bool = False) -> None:
    batch = DraftBatch(["a", "b"], (), (), [max_drafts] * 2, chain_only=[chain_only] * 2)
    check_proposals("spec_decode=x", proposals, batch, VOCAB, torch.device("cpu"))


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(),
        Proposal((0, 9, 9)),
        Proposal((1, 2, 1), (-1, -1, 1)),
        Proposal((5,), probs=torch.full((1, VOCAB), 0.1)),
    ],
)
def test_legal_proposals_pass(proposal: Proposal) -> None:
    check([proposal, Proposal()])


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (Proposal((1, 2, 3, 4)), r"'at most max_drafts drafts': b: 4 > 3"),
        (Proposal((1, 10)), r"token ids of the target': b: \(1, 10\) not in 0\.\.9"),
        (Proposal((-1, 1)), r"token ids of the target': b: \(-1, 1\)"),
        (Proposal((1, 2), (1, -1)), r"parents come before their children': b: parents \(1, -1\) of 2 nodes"),
        (Proposal((1, 2), (-1, 1)), r"parents come before their children'"),
        (Proposal((1, 2), (-1,)), r"parents come before their children': b: parents \(-1,\) of 2 nodes"),
        (Proposal((1, 2), (-2, 0)), r"parents come before their children'"),
        (Proposal((1, 1), (-1, -1)), r"siblings have distinct tokens': b: tokens \(1, 1\)"),
        (Proposal((1, 2), probs=torch.ones(1, VOCAB)), r"probs are fp32 .*: b: \(1, 10\) of torch.float32 on cpu"),
        (Proposal((1,), probs=torch.ones(1, 9)), r"\(1, 9\) of torch.float32 on cpu for 1 drafts of 10 tokens"),
        (Proposal((1,), probs=torch.ones(1, VOCAB).double()), r"of torch.float64"),
        (Proposal((), probs=torch.ones(1, VOCAB)), r"for 0 drafts"),
    ],
)
def test_illegal_proposals_name_plugin_rule_and_request(proposal: Proposal, message: str) -> None:
    with pytest.raises(PluginContractError, match=f"spec_decode=x.*{message}"):
        check([Proposal(), proposal])


def test_trees_are_refused_where_only_chains_are_legal() -> None:
    check([Proposal((1, 2)), Proposal()], chain_only=True)
    with pytest.raises(PluginContractError, match=r"no tree where only chains are legal': a: parents \(-1, 0\)"):
        check([Proposal((1, 2), (-1, 0)), Proposal()], chain_only=True)


def test_every_request_gets_an_answer() -> None:
    with pytest.raises(PluginContractError, match="one proposal for each request': 1 proposals for 2 requests"):
        check([Proposal()])
