"""A tenant is one however many salts it has, and no salt is told to people."""

import pytest

from raydix.runtime.messages.tenants import tenant_label, tenant_of


def test_a_tenant_is_one_whatever_follows_its_name() -> None:
    assert len({tenant_of(salt) for salt in ("alice/", "alice/x", "alice/x/y", "alice//")}) == 1


def test_no_two_names_are_one_tenant() -> None:
    salts = [None, "", "alice", "alice/", "alic/e", "bob/", "/", "alice\0/"]
    assert len({tenant_of(salt) for salt in salts}) == len(salts)


@pytest.mark.parametrize(
    ("salt", "label"), [(None, None), ("alice/", "alice"), ("alice/hidden/word", "alice")]
)
def test_people_are_told_the_tenants_name(salt: str | None, label: str | None) -> None:
    assert tenant_label(salt) == label


def test_a_salt_without_a_name_is_told_by_a_number() -> None:
    label = tenant_label("a salt that nobody else knows")
    assert label is not None
    assert label.startswith("#")
    assert len(label) == 13
    assert label != tenant_label("another salt")
