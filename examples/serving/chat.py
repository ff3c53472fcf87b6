"""Asks a server that runs (`tokenloom serve`) with the openai client (pip install openai). Usage: chat.py [URL]"""

from __future__ import annotations

import os
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Colour(BaseModel):
    """What the model must fill in."""

    name: Literal["red", "yellow", "blue"]
    is_warm: bool


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TOKENLOOM_API_KEY", "none"))
    model = client.models.list().data[0].id

    print("# a chat, as it is written")
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three primary colours."}],
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"top_k": 40, "repetition_penalty": 1.05},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage is not None:
            print(f"\n# {chunk.usage.completion_tokens} tokens")

    print("# several answers")
    answers = client.completions.create(model=model, prompt="A cat's name:", n=3, max_tokens=4, temperature=1, seed=7)
    for choice in answers.choices:
        print(choice.index, repr(choice.text), choice.finish_reason)

    print("# an answer of a form")
    reply = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Describe a colour, as JSON."}],
        max_tokens=64,
        temperature=0,
        response_format=Colour,
    )
    print(reply.choices[0].message.parsed)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
