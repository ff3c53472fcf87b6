"""An API key as its owner writes it down: the secret alone, or `name:secret`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tokenloom.errors import ConfigError

__all__ = ["ApiKey"]


@final
@dataclass(frozen=True, slots=True)
class ApiKey:
    """What one client shows.

    Attributes:
        name: what the tenant is called; "" for a name made of the secret.
        secret: what stands behind "Bearer".
    """

    name: str
    secret: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> ApiKey:
        """Reads one. Spaces around either part do not count: HTTP would drop them.

        Raises:
            ConfigError: the secret is empty, or no client could send it in a header.
        """
        name, colon, secret = (part.strip() for part in text.partition(":"))
        if not colon:
            name, secret = "", name
        if not secret:
            raise ConfigError("server.api_keys: a key is empty; write the secret, or name:secret")
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            # Nothing of it may be shown.
            whose = f"that of {name!r}" if name else "one without a name"
            raise ConfigError(
                f"server.api_keys: a secret, {whose}, holds spaces or characters beyond ASCII, and no client could "
                "send it; write the secret, or name:secret"
            )
        return cls(name, secret)
