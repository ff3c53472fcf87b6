"""`tokenloom generate`: complete one prompt, streaming to stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tokenloom.cli.config_arguments import config_dir_option, split_words
from tokenloom.cli.run_report import print_plan, print_times
from tokenloom.cli.sampling_settings import SamplingSettings
from tokenloom.compose import compose_config
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams

__all__ = ["generate"]


@click.command()
@click.argument("words", nargs=-1, metavar="[TEXT] [KEY=VALUE]...")
@click.option("--prompt", help="The prompt, taken as it is; for texts that contain '='.")
@click.option("--chat", "as_chat", is_flag=True, help="Send the text as a user's message, through the chat template.")
@click.option("-v", "--verbose", is_flag=True, help="Print the resolved plan and the memory breakdown first.")
@config_dir_option
def generate(words: tuple[str, ...], prompt: str | None, as_chat: bool, verbose: bool, config_dir: Path | None) -> None:
    """Complete TEXT (or standard input) and stream the result.

    Sampling keys stand beside the engine's: max_tokens=64 temperature=0.7 top_p=0.9 seed=1 n=2 stop=[END].

    For example: tokenloom generate "The capital of France is" max_tokens=16 scheduler=fcfs
    """
    texts, overrides = split_words(words)
    text = _prompt(texts, prompt)
    composed = compose_config(overrides, config_dir=config_dir, command=SamplingSettings)
    params = composed.extras_of(SamplingSettings).params()
    with LLM(config=composed) as llm:
        if verbose:
            print_plan(llm)
        _run(llm, text, params, as_chat=as_chat)


def _run(llm: LLM, text: str, params: SamplingParams, *, as_chat: bool) -> None:
    prompt = [{"role": "user", "content": text}] if as_chat else text
    stream = llm.stream(prompt, params)
    texts: dict[int, list[str]] = {}
    for delta in stream:
        texts.setdefault(delta.index, []).append(delta.text)
        if params.n == 1:
            click.echo(delta.text, nl=False)
        if delta.error is not None:
            raise click.ClickException(delta.error)
    if params.n > 1:
        for index in sorted(texts):
            click.echo(f"--- choice {index} ---\n{''.join(texts[index])}")
    elif not "".join(texts.get(0, [])).endswith("\n"):
        click.echo()
    print_times(stream)


def _prompt(texts: list[str], prompt: str | None) -> str:
    if prompt is not None:
        if texts:
            raise click.UsageError(f"both --prompt and the text {texts[0]!r} were given; use one")
        return prompt
    if len(texts) > 1:
        raise click.UsageError(f"got {len(texts)} texts, the first two {texts[0]!r} and {texts[1]!r}; quote the prompt")
    if texts:
        return texts[0]
    if sys.stdin.isatty():
        raise click.UsageError("no prompt: give a text, --prompt, or standard input")
    return sys.stdin.read()
