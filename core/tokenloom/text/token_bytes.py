"""From a token's string to the bytes that it adds to the text.

Text is always made from these bytes (and only decoded as UTF-8 once they are joined), so that a character that spans
several tokens, a whole `decode` and an incremental one cannot disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["BYTE_OF_CHAR", "SPACE_MARK", "TextForm"]

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    # Byte-level vocabularies write each byte as one visible character: printable Latin-1 stands for itself, the other
    # bytes take the code points from 256 on, in order.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF_CHAR = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a vocabulary writes text in its token strings.

    Attributes:
        byte_level: each character of a token stands for one byte; otherwise tokens hold text with `▁` for a space.
        byte_fallback: tokens of the form `<0x0A>` stand for one byte (not used with `byte_level`).
        strip_leading_space: encoding puts a space before the text, so decoding takes one away at the very start.
        strips_marks: what is taken away is every `▁` of the first token, never a space that stands in it as such.
        doubles_leading_space: the library would take the text's own leading space for the one that encoding puts there.
    """

    byte_level: bool
    byte_fallback: bool = False
    strip_leading_space: bool = False
    strips_marks: bool = False
    doubles_leading_space: bool = False

    def prepared(self, text: str) -> str:
        """Returns `text`, which begins a sequence, as the library must get it."""
        return f" {text}" if self.doubles_leading_space and text.startswith((" ", SPACE_MARK)) else text

    def first_bytes_of(self, token: str, *, is_added: bool) -> bytes:
        """Returns the bytes of the token that begins a text. `is_added`: as in `bytes_of`."""
        if self.strip_leading_space and self.strips_marks:
            return self.bytes_of(token.replace(SPACE_MARK, ""), is_added=is_added)
        data = self.bytes_of(token, is_added=is_added)
        return data.removeprefix(b" ") if self.strip_leading_space else data

    def bytes_of(self, token: str, *, is_added: bool) -> bytes:
        """Returns the bytes of one token. `is_added`: the token was matched in the text as it stands."""
        if self.byte_level:
            values = [] if is_added else [BYTE_OF_CHAR.get(char) for char in token]
            # A string outside the byte alphabet was added to the vocabulary as plain text.
            known = bytes(value for value in values if value is not None)
            return known if values and len(known) == len(token) else token.encode()
        byte_token = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        if byte_token is not None:
            return bytes([int(byte_token[1], 16)])
        return token.replace(SPACE_MARK, " ").encode()
