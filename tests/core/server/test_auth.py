"""API keys as tenants."""

from __future__ import annotations

import pytest

from tokenloom.server.api_errors import ApiError
from tokenloom.server.api_key import ApiKey
from tokenloom.server.auth import ApiKeys

KEYS = ApiKeys([ApiKey("alice", "first-secret"), ApiKey("", "second-secret")])


def test_without_keys_everybody_is_nobody() -> None:
    tenant = ApiKeys([]).tenant("Bearer whatever")
    assert (tenant.name, tenant.salt, tenant.salt_for(None), tenant.salt_for("mine")) == ("", "", "", "mine")


def test_each_key_is_a_tenant_with_a_salt_that_hides_the_key() -> None:
    alice, other = KEYS.tenant("Bearer first-secret"), KEYS.tenant("bearer second-secret")
    assert alice.name == "alice"
    assert other.name.startswith("key-")
    assert alice.salt != other.salt
    for tenant in (alice, other):
        for secret in ("first-secret", "second-secret"):
            assert secret not in tenant.name + tenant.salt


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Bearer  ", "missing_api_key"),
        ("Basic first-secret", "missing_api_key"),
        ("first-secret", "missing_api_key"),
        ("Bearer wrong", "invalid_api_key"),
        ("Bearer alice:first-secret", "invalid_api_key"),
        ("Bearer first-secre", "invalid_api_key"),
        ("Bearer \udcff", "invalid_api_key"),
    ],
)
def test_wrong_keys_are_refused(header: str | None, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        KEYS.tenant(header)
    assert (caught.value.status, caught.value.code) == (401, code)
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_equal_salts_of_two_tenants_stay_apart() -> None:
    alice, other = KEYS.tenant("Bearer first-secret"), KEYS.tenant("Bearer second-secret")
    salts = {alice.salt_for("mine"), other.salt_for("mine"), alice.salt_for(None), alice.salt_for("yours")}
    assert len(salts) == 4
    assert alice.salt_for("mine") == alice.salt_for("mine")


def test_a_shared_cache_has_no_salt_of_the_key() -> None:
    tenant = ApiKeys([ApiKey("alice", "secret")], shares_cache=True).tenant("Bearer secret")
    assert (tenant.name, tenant.salt_for(None), tenant.salt_for("mine")) == ("alice", "", "mine")
