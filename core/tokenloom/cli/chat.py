"""`tokenloom chat`: a conversation in the terminal, streaming."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.run_report import print_plan, print_times
from tokenloom.cli.sampling_settings import SamplingSettings
from tokenloom.compose import compose_config
from tokenloom.errors import RequestError
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams

__all__ = ["chat"]


@click.command()
@overrides_argument
@click.option("--system", help="System message to begin with.")
@click.option("-v", "--verbose", is_flag=True, help="Print the resolved plan and the memory breakdown first.")
@config_dir_option
def chat(overrides: tuple[str, ...], system: str | None, verbose: bool, config_dir: Path | None) -> None:
    """Talk to the model. /reset starts over, /exit (or Ctrl-D) ends, Ctrl-C interrupts an answer.

    For example: tokenloom chat temperature=0.7 cache=hash
    """
    composed = compose_config(overrides, config_dir=config_dir, command=SamplingSettings)
    params = composed.extras_of(SamplingSettings).params()
    if params.n != 1:
        raise click.UsageError(f"n={params.n}: a conversation has one answer at a time; drop n")
    with LLM(config=composed) as llm:
        if verbose:
            print_plan(llm)
        _converse(llm, params, [] if system is None else [{"role": "system", "content": system}])


def _converse(llm: LLM, params: SamplingParams, opening: list[dict[str, str]]) -> None:
    messages = list(opening)
    while (line := _read_line()) is not None:
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(opening)
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
        except RequestError as error:
            messages.pop()
            click.echo(f"error: {error}; /reset starts over", err=True)


def _read_line() -> str | None:
    """The next line, or None at the end of input. Only a terminal sees a prompt."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Streams one answer; Ctrl-C keeps what has been said so far."""
    stream = llm.stream(messages, params)
    texts: list[str] = []
    try:
        for delta in stream:
            texts.append(delta.text)
            click.echo(delta.text, nl=False)
            if delta.error is not None:
                raise RequestError(delta.error)
    except KeyboardInterrupt:
        if not llm.engine.is_alive:
            raise  # A second Ctrl-C tore the step apart.
        stream.close()
    click.echo()
    print_times(stream)
    return "".join(texts)
