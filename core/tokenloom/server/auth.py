"""API keys: each one is a tenant, with a share of the schedule and a prefix cache of its own."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.server.api_errors import ApiError
from tokenloom.server.api_key import ApiKey

__all__ = ["ApiKeys", "Tenant"]

_TENANT_CHARS = 12


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a request is.

    Attributes:
        name: as schedulers and records know it; "" for nobody's.
        salt: of its cached blocks; "" shares them with everybody.
    """

    name: str = ""
    salt: str = ""

    def salt_for(self, requested: str | None) -> str:
        """The salt of one request, which may ask for one of its own; equal ones of two tenants stay apart."""
        if not self.salt or not requested:
            return self.salt or requested or ""
        return hmac.new(self.salt.encode(), requested.encode("utf-8", "backslashreplace"), hashlib.sha256).hexdigest()


NOBODY = Tenant()


@final
class ApiKeys:
    """The keys that open this server; without any, everybody may use it.

    Args:
        keys: one for each tenant.
        shares_cache: tenants find each other's cached blocks. Saves memory, and lets one learn by timing what another
            one sent.
    """

    def __init__(self, keys: Sequence[ApiKey], *, shares_cache: bool = False) -> None:
        self._tenants = [_entry(key, shares_cache) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose request this is, by its header Authorization.

        Raises:
            ApiError: 401, no key or a wrong one.
        """
        if not self._tenants:
            return NOBODY
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise ApiError(
                401, "an API key is required; send the header 'Authorization: Bearer KEY'", code="missing_api_key"
            )
        digest = _digest(secret)
        # Every entry is compared, in constant time each, so that the answer's time tells nothing about the keys.
        matches = [tenant for known, tenant in self._tenants if hmac.compare_digest(known, digest)]
        if not matches:
            raise ApiError(401, "the API key is not known to this server", code="invalid_api_key")
        return matches[0]


def _entry(key: ApiKey, shares_cache: bool) -> tuple[bytes, Tenant]:
    secret = key.secret
    label = key.name or f"key-{hashlib.sha256(b'tenant ' + secret.encode()).hexdigest()[:_TENANT_CHARS]}"
    # The salt goes to caches and into traces: it must not give the key away.
    salt = "" if shares_cache else hashlib.sha256(b"cache salt " + secret.encode()).hexdigest()
    return _digest(secret), Tenant(label, salt)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
