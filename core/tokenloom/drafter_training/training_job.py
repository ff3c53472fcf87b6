"""One training from end to end: data, head, training, judgement, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from safetensors.torch import load_file

from tokenloom.clock import Clock
from tokenloom.compose import ComposedConfig
from tokenloom.drafter_training.acceptance import Acceptance, measure_acceptance
from tokenloom.drafter_training.conversations import ConversationPlan
from tokenloom.drafter_training.corpus import Corpus, write_tensors
from tokenloom.drafter_training.corpus_maker import CorpusPlan, make_corpus
from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary
from tokenloom.drafter_training.eagle3_network import Eagle3Network
from tokenloom.drafter_training.head_files import HeadRecord, write_head
from tokenloom.drafter_training.head_start import HeadStart, read_head_start
from tokenloom.drafter_training.medusa_network import MedusaNetwork
from tokenloom.drafter_training.target import Target, aux_layers, read_target
from tokenloom.drafter_training.trainable_head import TrainableHead
from tokenloom.drafter_training.training_loop import Progress, TrainingPlan, train
from tokenloom.errors import ConfigError
from tokenloom.executors.device_choice import choose_device
from tokenloom.loader.sources import resolve_model
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["HeadKind", "TrainingJob", "run_training"]

HeadKind = Literal["medusa", "eagle3"]
_CHECKPOINT, _VOCABULARY = "checkpoint.pt", "draft_vocabulary.safetensors"


@final
@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What to train on what.

    Attributes:
        kind: of the drafter.
        output: folder for the head and for the checkpoint of its training.
        data: folder of the corpus.
        num_conversations: that the corpus is to hold.
        conversations: how these are made.
        max_tokens: longer conversations are cut off there in training.
        num_drafts: in a row that the head is trained for.
        draft_vocab_size: tokens that it can draft.
        training: how to train.
        command: for the head's card.
        init: folder of a head of the same kind and target, to begin with; None begins anew.
    """

    kind: HeadKind
    output: Path
    data: Path
    num_conversations: int
    conversations: ConversationPlan
    max_tokens: int
    num_drafts: int
    draft_vocab_size: int
    training: TrainingPlan
    command: str
    init: Path | None = None


def run_training(
    config: ComposedConfig,
    job: TrainingJob,
    clock: Clock,
    progress: Callable[[str, int, int], None],
    report: Callable[[Progress], None],
) -> Acceptance:
    """Makes the data that is not there yet, trains what is not trained yet, and writes the head.

    Args:
        config: of the engine that makes the data, without prefix cache and drafts.
        job: what to do.
        clock: measures the time of training.
        progress: told (part, done, in all).
        report: told after each step of training.

    Raises:
        ConfigError: `job.data`, the checkpoint in `job.output` or `job.init` belong to another recipe or head.
        ModelError: the target cannot be read, or has too few layers.
    """
    settings = config.engine.model
    path = resolve_model(settings.source, revision=settings.revision)
    target = read_target(path, choose_device(settings))
    layers = (*aux_layers(target.config.num_layers), FINAL_STATE)
    start = None if job.init is None else read_head_start(job.init, job.kind, target.fingerprint)
    plan = CorpusPlan(target.fingerprint, layers, job.num_conversations, job.conversations)
    make_corpus(config, job.data, plan, progress)
    corpus = Corpus(job.data, max_tokens=job.max_tokens)
    job.output.mkdir(parents=True, exist_ok=True)
    head = _build(job, target, corpus, start)
    end = train(head, corpus, job.training, job.output / _CHECKPOINT, clock, report)
    acceptance = measure_acceptance(head, target, corpus, lambda done, total: progress("judging", done, total))
    record = HeadRecord(job.kind, target.name, target.fingerprint, job.command, _facts(job, corpus, end))
    write_head(job.output, head, record, acceptance)
    return acceptance


def _build(job: TrainingJob, target: Target, corpus: Corpus, start: HeadStart | None) -> TrainableHead:
    ids = _draft_ids(job, target, corpus, start)
    vocabulary = DraftVocabulary(ids.to(target.head.device), target.config.vocab_size)
    torch.manual_seed(job.training.seed)
    network = Eagle3Network if job.kind == "eagle3" else MedusaNetwork
    head: TrainableHead = network(target, vocabulary, job.num_drafts)
    if start is not None:
        start.apply(head)
    return head.to(target.head.device)


def _draft_ids(job: TrainingJob, target: Target, corpus: Corpus, start: HeadStart | None) -> torch.Tensor:
    """Chosen once for each head: its weights mean nothing with other ones, though the corpus may have grown."""
    path, key = job.output / _VOCABULARY, "ids"
    vocab_size = target.config.vocab_size
    wanted = min(job.draft_vocab_size, vocab_size)
    if path.exists():
        ids = load_file(path)[key]
        if len(ids) != wanted:
            raise ConfigError(
                f"draft_vocab_size={job.draft_vocab_size}: the head in output={job.output} was begun with {len(ids)} "
                "tokens; keep that number, or choose another output="
            )
        return ids
    if start is not None and len(start.draft_ids) != wanted:
        raise ConfigError(
            f"draft_vocab_size={job.draft_vocab_size}: the head in init={start.folder} drafts {len(start.draft_ids)} "
            "tokens; choose that number"
        )
    answers = (corpus.answer(index) for index in corpus.training)
    ids = DraftVocabulary.most_frequent(answers, wanted, vocab_size).ids if start is None else start.draft_ids
    write_tensors(path, {key: ids})
    return ids


def _facts(job: TrainingJob, corpus: Corpus, end: Progress) -> Sequence[tuple[str, str]]:
    tokens = sum(map(corpus.num_tokens, corpus.training))
    answers = sum(map(corpus.num_answer_tokens, corpus.training))
    plan, made = job.training, job.conversations
    return (
        ("conversations", f"{len(corpus.training)} to train on, {len(corpus.held_out)} held out"),
        ("tokens", f"{tokens}, of them {answers} of answers"),
        ("answers", f"at most {made.answer_tokens} tokens; {made.greedy_share:.0%} greedy, {made.temperature} else"),
        ("draft vocabulary", f"{job.draft_vocab_size} most frequent tokens of the answers"),
        (
            "steps",
            f"{end.step} of {plan.batch_tokens} tokens; {plan.epochs * end.step / end.num_steps:.1f} epochs",
        ),
        (
            "counted",
            f"a token of a prompt {plan.prompt_weight:g}, of an answer 1; all drafts after {plan.growth:.0%} of it",
        ),
        ("learning rate", f"AdamW, {plan.learning_rate:g}, warmed up, held, falling in the last 30%"),
        ("time", f"{end.elapsed_s / 60:.0f} minutes; products in {plan.precision}; threads: {torch.get_num_threads()}"),
        ("seed", str(plan.seed)),
    )
