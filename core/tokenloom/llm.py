"""Offline use: `LLM(...).generate(prompts)`, `.chat(messages)`, `.stream(prompt)`. Called from one thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast, final

from tokenloom.clock import MonotonicClock
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.engine import Engine
from tokenloom.engine_builder import build_engine
from tokenloom.engine_tap import EngineTap
from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.load_progress import load_progress
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.sources import resolve_model
from tokenloom.plugins import Registry
from tokenloom.request import Request
from tokenloom.request_factory import RequestFactory, RequestTraits
from tokenloom.results import RequestOutput
from tokenloom.sampling_params import SamplingParams
from tokenloom.session import Session, TextStream
from tokenloom.structured import compile_grammar
from tokenloom.text.bad_words import encode_bad_words
from tokenloom.text.chat_template import ChatTemplate
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer

__all__ = ["LLM"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


@final
class LLM:
    """A model ready to generate.

    Example:
        >>> from tokenloom import LLM, SamplingParams
        >>> llm = LLM(scheduler="fcfs", max_num_seqs=8)  # doctest: +SKIP
        >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text  # doctest: +SKIP
        ' Paris.'
    """

    def __init__(
        self,
        model: str | None = None,
        overrides: Sequence[str] = (),
        *,
        config_dir: str | Path | None = None,
        config: ComposedConfig | None = None,
        registry: Registry | None = None,
        show_progress: bool | None = None,
        taps: Sequence[EngineTap] = (),
        **keywords: Any,
    ) -> None:
        """Composes the configuration, fetches the model if need be, and loads it.

        Args:
            model: as `model=` on the command line; None is the default model.
            overrides: strings such as "cache=none" or "scheduler.max_num_seqs=8".
            config_dir: folder of further config groups.
            config: a composed configuration instead of all of the above.
            registry: the plugins to choose from; the installed ones by default.
            show_progress: progress bars on stderr; None shows them on a terminal only.
            taps: hear what goes by between the engine and its parts, e.g. for a profile.
            keywords: Python keywords for the most used keys, e.g. dtype="float32", block_size=32; see
                `tokenloom.compose.KEYWORDS`.

        Raises:
            ConfigError, CapabilityError, PluginError, ModelError, OutOfMemoryError: see their docs.
        """
        if config is None:
            given = keywords if model is None else {"model": model, **keywords}
            folder = None if config_dir is None else Path(config_dir)
            config = compose_config(overrides, config_dir=folder, keywords=given, registry=registry)
        self.config = config
        settings = config.engine.model
        clock = MonotonicClock()
        with load_progress(show_progress) as (progress, is_shown):
            path = resolve_model(settings.source, revision=settings.revision, progress=is_shown)
            checkpoint = open_checkpoint(path)
            try:
                self.model_path = path
                self.tokenizer: Tokenizer = build_tokenizer(checkpoint.tokenizer_source(), checkpoint.config.vocab_size)
            finally:
                checkpoint.close()
            # The engine takes what was found here: asked again, a hub could answer with another revision.
            found = settings.model_copy(update={"source": str(path), "revision": None})
            engine_config = config.engine.model_copy(update={"model": found})
            self.engine: Engine = build_engine(
                engine_config, registry=registry, clock=clock, progress=progress, taps=taps
            )
        # A loaded model is a million objects that live as long as it does; walking them again and again costs the
        # garbage collector more than all of a step's own Python work.
        gc.collect()
        gc.freeze()
        eos_token_ids = tuple(dict.fromkeys((*self.engine.facts.eos_token_ids, *self.tokenizer.eos_token_ids)))
        self._clock = clock
        self._eos_token_ids = eos_token_ids
        self._factory = RequestFactory(self.engine.limits, eos_token_ids, config.engine.engine.seed, clock, registry)
        self._session = Session(self.engine, self.tokenizer)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        structured_outputs: GrammarSpec | Sequence[GrammarSpec | None] | None = None,
        traits: RequestTraits | Sequence[RequestTraits] | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, all of them in one batch.

        Args:
            prompts: one prompt (text or token ids) or a list of them.
            params: for all prompts, or one each; SamplingParams() by default.
            structured_outputs: what each text must match, e.g. GrammarSpec.json_schema({...}), for all prompts or one
                each.
            traits: priority, tenant, SLOs and the like, for all prompts or one each.
            on_step: called after every step, e.g. to show progress.

        Returns:
            One output for each prompt, in order. A request that failed alone has finish_reason "error".

        Raises:
            RequestError: a prompt or parameter can never run; then nothing was started.
            OverloadedError: more requests would wait than scheduler.max_queued_requests or max_queued_tokens allow,
                beside those of streams that are under way; then nothing was started.
        """
        items = _as_prompts(prompts)
        all_params = _one_each(params, SamplingParams, len(items), "params")
        all_traits = _one_each(traits, RequestTraits, len(items), "traits")
        specs = _one_each(structured_outputs, GrammarSpec, len(items), "structured_outputs", may_be_none=True)
        encoded = [(item if isinstance(item, str) else None, self._encode(item)) for item in items]
        groups = [
            self._requests(ids, params, traits, spec)
            for (_, ids), params, traits, spec in zip(encoded, all_params, all_traits, specs, strict=True)
        ]
        requests = [request for group in groups for request in group]
        choices = self._session.start(requests)
        try:
            while not all(choice.is_finished for choice in choices):
                self._session.pump()
                if on_step is not None:
                    on_step()
        finally:
            self._session.drop(requests)
        done = iter(choices)
        outputs = []
        for (text, ids), group in zip(encoded, groups, strict=True):
            own = [next(done) for _ in group]
            completions = [choice.completion() for choice in own]
            outputs.append(RequestOutput(text, ids, completions, group[0].num_cached_tokens, own[0].prompt_logprobs()))
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        structured_outputs: GrammarSpec | Sequence[GrammarSpec | None] | None = None,
        **variables: Any,
    ) -> list[RequestOutput]:
        """Answers conversations.

        Args:
            messages: one conversation (a list of {"role", "content"}) or a list of them.
            params: as in `generate`.
            chat_template: Jinja source instead of the model's own.
            structured_outputs: as in `generate`.
            variables: further variables that the template reads.

        Raises:
            RequestError: as in `generate`, and for messages that the template cannot render.
        """
        is_single = not messages or isinstance(messages[0], Mapping)
        conversations = [messages] if is_single else messages
        template = ChatTemplate.for_tokenizer(self.tokenizer, chat_template)
        prompts = [template.encode_chat(self.tokenizer, c, **variables) for c in conversations]
        return self.generate(prompts, params, structured_outputs=structured_outputs)

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        chat_template: str | None = None,
        structured_outputs: GrammarSpec | None = None,
    ) -> TextStream:
        """Completes one prompt, or answers one conversation, piece by piece.

        The request starts at once; closing the stream aborts it. Pieces of several choices interleave.
        """
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            template = ChatTemplate.for_tokenizer(self.tokenizer, chat_template)
            ids = template.encode_chat(self.tokenizer, prompt)
        else:
            ids = self._encode(prompt)  # type: ignore[arg-type]
        spec = _one_each(structured_outputs, GrammarSpec, 1, "structured_outputs", may_be_none=True)[0]
        return TextStream(self._session, self._requests(ids, params or SamplingParams(), RequestTraits(), spec))

    def close(self) -> None:
        """Frees the model; idempotent. Also done at the end of a `with` block."""
        self.engine.close()
        gc.unfreeze()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _requests(
        self, prompt_token_ids: list[int], params: SamplingParams, traits: RequestTraits, spec: GrammarSpec | None
    ) -> list[Request]:
        if spec is not None:
            if traits.constraint is not None:
                raise RequestError("give structured_outputs or traits.constraint, not both", "structured_outputs")
            vocab_size = self.engine.limits.vocab_size
            traits = replace(traits, constraint=compile_grammar(spec, self.tokenizer, vocab_size, self._eos_token_ids))
        return self._factory.make(prompt_token_ids, params, traits, encode_bad_words(self.tokenizer, params.bad_words))

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        is_list = isinstance(prompt, list | tuple)
        if not is_list or not all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
            raise RequestError(f"a prompt is a string or a list of token ids, got {prompt!r:.80}", "prompt")
        return list(prompt)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise RequestError(f"prompts are text, token ids, or a list of these; got {type(prompts).__name__}", "prompt")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _one_each(given: Any, kind: type[Any], count: int, name: str, *, may_be_none: bool = False) -> list[Any]:
    """`given` for all, one each, or the default (None, if that may be); refuses anything else."""
    if given is None and not may_be_none:
        given = kind()
    values = list(given) if isinstance(given, list | tuple) else [given] * count
    for value in values:
        if not isinstance(value, kind) and not (may_be_none and value is None):
            raise RequestError(f"{name} must be {kind.__name__} or a list of them, got {value!r:.80}", name)
    if len(values) != count:
        raise RequestError(f"{name} has {len(values)} entries for {count} prompts; give one for all, or one each", name)
    return values
