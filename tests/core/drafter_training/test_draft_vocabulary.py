"""Draft vocabularies: the most frequent tokens, and how their columns and ids lead to each other."""

from __future__ import annotations

import torch

from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary


def test_the_most_frequent_tokens_can_be_drafted() -> None:
    vocabulary = DraftVocabulary.most_frequent([(7, 3, 7), (7, 5, 3, 9)], 3, 10)
    assert vocabulary.ids.tolist() == [3, 5, 7]
    assert (torch.arange(3) + vocabulary.offsets).tolist() == [3, 5, 7]
    assert vocabulary.mask.nonzero().flatten().tolist() == [3, 5, 7]
    assert vocabulary.column_of[torch.tensor([3, 4, 7])].tolist() == [0, -1, 2]


def test_a_vocabulary_is_filled_up_with_the_lowest_ids() -> None:
    assert DraftVocabulary.most_frequent([(6,)], 4, 8).ids.tolist() == [0, 1, 2, 6]
