"""The conformance suite of drafters: legal proposals, requests kept apart, honest probabilities, greedy identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.spec_decode import DraftBatch, DrafterNeeds, Proposal
from tokenloom.proposal_check import check_proposals
from tokenloom.testing.draft_driver import DraftScript, drafts_of, same_drafts, scripts
from tokenloom.testing.draft_memory_suite import DraftMemorySuite
from tokenloom.testing.drawn_drafts import (
    check_distributions,
    check_frequencies,
    check_independence,
    draw_many,
    draw_related,
)
from tokenloom.testing.footprint import bytes_leaked
from tokenloom.testing.surroundings import generators_untouched

__all__ = ["SpecDecodeSuite"]


class SpecDecodeSuite(DraftMemorySuite):
    """Tests of the contract in `tokenloom.interfaces.spec_decode`::

        class TestMine(SpecDecodeSuite):
            plugin = "my_drafter"

    The flag `shared_statistics` says that what ended requests have taught enters later proposals: then ids that are
    used again need not look like new ones.
    """

    # ---- one call ----

    def test_needs_are_legal_and_fixed(self) -> None:
        """`needs()` named a decoder layer that the target does not have, or changed between two calls.

        Layers are 0..num_layers - 1, and -1 for the final normed state. The core reads the needs once.
        """
        drafter = self.drafter()
        needs = drafter.needs()
        assert isinstance(needs, DrafterNeeds), f"needs() returned {needs!r}"
        num_layers = self.context.num_layers
        wrong = [layer for layer in needs.hidden_layers if not -1 <= layer < num_layers]
        assert not wrong, f"hidden_layers {wrong} of a model with {num_layers} layers"
        self.driver(drafter).play(self.scripts())
        assert drafter.needs() == needs, f"needs() was {needs}, then {drafter.needs()}"

    @pytest.mark.parametrize("chain_only", [True, False])
    def test_proposals_are_legal(self, chain_only: bool) -> None:
        """A proposal was refused by the core's own check, which names the rule.

        Token ids are plain ints below the target's vocabulary; of a tree, parents come before their children and
        siblings differ; probs are fp32 [drafts, vocabulary]. The text runs through several steps.
        """
        driver = self.driver()
        requests = self.scripts()
        for step in range(max(len(request.lengths) for request in requests)):
            live = [request for request in requests if step < len(request.lengths)]
            asked = [request.asked(step, chain_only=chain_only) for request in live]
            proposals = driver.propose(asked)
            batch = DraftBatch(
                request_ids=[a.request_id for a in asked],
                token_ids=(),
                num_prompt_tokens=(),
                max_drafts=[a.max_drafts for a in asked],
                chain_only=[a.chain_only for a in asked],
            )
            for proposal in proposals:
                assert isinstance(proposal, Proposal), f"propose() returned {proposal!r}"
                plain = all(type(number) is int for number in (*proposal.token_ids, *proposal.parents))
                assert plain, f"not plain ints: {proposal.token_ids}, parents {proposal.parents}"
                assert type(proposal.token_ids) is tuple, f"token_ids is a {type(proposal.token_ids).__name__}"
            try:
                check_proposals("drafter", proposals, batch, self.context.vocab_size, self.context.device)
            except PluginContractError as error:
                raise AssertionError(f"step {step}: {error}") from error

    def test_no_drafts_where_none_are_asked_for(self) -> None:
        """A request with max_drafts 0 got drafts. Its row is there so that a drafter can keep up with its tokens."""
        driver = self.driver()
        for request in self.scripts():
            silent = DraftScript(request.request_id, request.token_ids, request.lengths, (0,) * len(request.lengths))
            for step in range(len(silent.lengths)):
                (proposal,) = driver.propose([silent.asked(step)])
                assert not proposal.token_ids, f"{proposal.token_ids} where max_drafts is 0"

    def test_chains_where_trees_are_illegal(self) -> None:
        """A tree was proposed for a request that is marked chain_only.

        Its logits constraint, the attention backend or the verifier cannot take one; a chain is always legal.
        """
        for request in self.scripts():
            for proposal in self.play([request])[request.request_id]:
                assert not proposal.parents, f"parents {proposal.parents} where chain_only is set"

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_the_shortest_sequences_are_served(self, length: int) -> None:
        """A sequence of one, two or three tokens made `propose` fail, or gave it more drafts than were asked for."""
        request = DraftScript("r", (5,) * length, (length,), (4,))
        (proposal,) = self.driver().propose([request.asked(0)])
        assert len(proposal.token_ids) <= 4, f"{len(proposal.token_ids)} drafts of at most 4"

    # ---- what it may read ----

    def test_only_verified_tokens_are_read(self) -> None:
        """Proposals changed with what lies in memory behind a request's tokens.

        There the core keeps drafts that it is verifying. Read the view that is given, not the array that it belongs to.
        """
        plain = self.play(self.scripts())
        other = self.driver(filler=self.context.vocab_size - 1).play(self.scripts())
        self._expect_same(plain, other, "other memory behind the tokens")

    def test_tokens_are_not_kept_after_the_call(self) -> None:
        """Proposals changed when the tokens of earlier calls were overwritten.

        `DraftBatch.token_ids` are views, valid in the call alone: copy what must last.
        """
        plain = self.play(self.scripts())
        self._expect_same(plain, self.driver(is_poisoned=True).play(self.scripts()), "the memory was used again")

    def test_proposals_do_not_depend_on_the_batch(self) -> None:
        """A request got other drafts in company than alone.

        What others say must not show in its drafts, nor their number. Draft lengths here are 0, 1, 3 and 5 and change
        every step: keep state by request id, never by place.
        """
        together = self.play(self.scripts())
        for request in self.scripts():
            alone = self.play([request])
            self._expect_same(alone, {request.request_id: together[request.request_id]}, "in a batch")

    def test_proposals_do_not_depend_on_the_order_of_the_batch(self) -> None:
        """The same requests in reversed order got other drafts.

        Proposals are answered in the order of `request_ids`, and state is kept by id.
        """
        turned = self.driver().play(self.scripts(), is_reversed=True)
        self._expect_same(self.play(self.scripts()), turned, "in reversed order")

    def test_equal_calls_give_equal_proposals(self) -> None:
        """A second drafter, built from the same config and asked the same, proposed something else.

        Draw with the keys in `DraftBatch.sampling`, and from no generator without a seed.
        """
        self._expect_same(self.play(self.scripts()), self.play(self.scripts()), "in a second run")

    # ---- forget ----

    def test_a_forgotten_id_is_a_new_request(self) -> None:
        """An id that was used again got drafts that its first owner's tokens had led to.

        `forget` is called for requests that ended and for preempted ones; the latter come back with all their tokens.
        """
        if "shared_statistics" in self.capabilities.flags:
            pytest.skip("the plugin declares shared_statistics: earlier requests may show")
        driver = self.driver()
        first, second = self.scripts()[1:3]
        renamed = DraftScript(first.request_id, second.token_ids, second.lengths, second.max_drafts, second.temperature)
        driver.play([first])
        self._expect_same(self.play([renamed]), driver.play([renamed]), "with an id that was used before")
        self._expect_same(self.play([first]), driver.play([first]), "with the id and the tokens of before")

    def test_forget_leaves_the_other_requests_alone(self) -> None:
        """A request's drafts changed because another one was forgotten, or an unknown id made `forget` fail."""
        _, gone, kept, _ = self.scripts()
        driver = self.driver()
        driver.forget("never_seen")
        for step in range(4):
            driver.propose([kept.asked(step), gone.asked(step)])
        # With shared_statistics the others may draft what the one that left has said.
        leaving = () if "shared_statistics" in self.capabilities.flags else (gone.request_id,)
        driver.forget(*leaving, "never_seen")
        rest = [proposal for step in range(4, len(kept.lengths)) for proposal in driver.propose([kept.asked(step)])]
        expected = self.play([kept])[kept.request_id][4:]
        assert same_drafts(expected, rest), f"{drafts_of(expected)} became {drafts_of(rest)} when another one left"

    def test_requests_that_ended_take_no_memory(self) -> None:
        """The drafter kept growing with the number of requests, though each of them was forgotten.

        What is kept by request, hidden states and tables of its text included, must go at `forget`.
        """
        if "shared_statistics" in self.capabilities.flags:
            pytest.skip("the plugin declares shared_statistics: it keeps some of earlier requests")
        drafter = self.drafter()
        driver = self.driver(drafter)

        def live(number: int) -> None:
            for step in range(2):
                asked = [request.asked(step) for request in self.scripts()]
                driver.propose([replace(a, request_id=f"{a.request_id}_{number}") for a in asked])
            driver.forget(*(f"{request.request_id}_{number}" for request in self.scripts()))

        leaked = bytes_leaked(drafter, live, 60)
        assert not leaked, f"it grows by {leaked} bytes with every four requests"

    def test_propose_leaves_generators_alone(self) -> None:
        """`propose` drew from a generator of the whole process, or seeded it: of torch, numpy or `random`.

        Whoever else draws there gets other numbers then. Draw with the keys in `DraftBatch.sampling`.
        """
        driver = self.driver()
        with generators_untouched("propose()"):
            for request in self.scripts():
                driver.propose([request.asked(2)])

    # ---- probabilities ----

    def test_probs_are_distributions(self) -> None:
        """`Proposal.probs` holds rows that do not sum to 1, negative or NaN numbers, or excludes the draft itself."""
        check_distributions(self._drawn(64))

    def test_drafts_are_drawn_from_their_probs(self) -> None:
        """Over many seeds, drafts are not distributed as `Proposal.probs` says (chi-square, each depth).

        The verifier `rejection` is exact only for the distribution that a draft was drawn from, in the precision in
        which it was drawn, after the drafter's own filters. Drafts chosen without chance have probs None.
        """
        check_frequencies(self._drawn(1200))

    def test_draws_are_independent(self) -> None:
        """Over many seeds, one draw tells another: the next depth's, the next step's, or another choice's (chi-square).

        Take noise of its own for every output position and every choice, as `DraftSampler` does. With the same noise at
        every depth, a generator that starts anew from the seed in every call, or noise that ignores the choice, each
        draw has the right distribution and the output has not.
        """
        drawn = draw_related(self.drafter, self.context, 512)
        self._require_probs(drawn)
        check_independence(drawn)

    def test_probs_are_the_cores_to_keep(self) -> None:
        """The probs of one call changed with the next call: return a tensor of its own each time."""
        driver = self.driver()
        request = self.scripts()[1]
        held = []
        for step in range(len(request.lengths)):
            (proposal,) = driver.propose([request.asked(step)])
            if proposal.probs is not None:
                held.append((step, proposal.probs, proposal.probs.clone()))
        if not held:
            pytest.skip("the plugin returns no probs")
        for step, probs, copy in held:
            assert bool((probs == copy).all()), f"the probs of step {step} were changed by a later call"

    # ---- in the engine ----

    @pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
    @pytest.mark.parametrize(("block_size", "budget"), [(1, 64), (4, 7), (4, 64)])
    def test_greedy_output_is_the_targets_own(self, verifier: str, block_size: int, budget: int) -> None:
        """Through the engine, on a small random model, greedy requests got other tokens with the drafter than without.

        The core verifies all drafts, so the drafter raised an error, or changed memory that is not its own. Prompts
        end before, at and behind the borders of blocks.
        """
        self.expect_plain_output(self.settings_of(verifier=verifier, block_size=block_size, budget=budget))

    def test_preempted_requests_get_the_same_tokens(self) -> None:
        """With so little memory that requests preempt one another, output changed or a call failed.

        A preempted request is forgotten and comes back later: all its tokens are new then, and first_positions starts
        from what the prefix cache still held.
        """
        engine = self.expect_plain_output(self.settings_of(num_blocks=20, budget=16))
        assert engine.engine.stats.num_preemptions > 0, "nothing was preempted: the test would prove nothing"

    def test_seeded_output_is_the_targets_own(self) -> None:
        """Requests that sample with a seed got other tokens with the drafter than without, under position noise."""
        self.expect_plain_output(self.settings_of(), temperature=0.9)

    def _drawn(self, count: int) -> list[list[Proposal]]:
        drawn = draw_many(self.drafter, self.context, count)
        self._require_probs(drawn)
        return drawn

    def _require_probs(self, drawn: Sequence[object]) -> None:
        if not drawn:
            pytest.skip("the plugin returns no probs: its drafts count as one-hot, which is always exact")

    def _expect_same(self, first: dict[str, list[Proposal]], second: dict[str, list[Proposal]], what: str) -> None:
        assert first.keys() == second.keys(), f"requests {list(first)} and {list(second)}"
        for request_id, expected in first.items():
            found = second[request_id]
            assert same_drafts(expected, found), (
                f"{request_id}: {drafts_of(expected)} became {drafts_of(found)} {what} (or their probs changed)"
            )

    def play(self, requests: list[DraftScript]) -> dict[str, list[Proposal]]:
        """The requests side by side on a drafter of their own."""
        return self.driver().play(requests)

    def scripts(self) -> list[DraftScript]:
        """Four requests, two of which sample."""
        return scripts(self.context.vocab_size)
