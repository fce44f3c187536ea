import os
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.server.keys import Access, Caller, Role, Verdict, load_keys, read_keys

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_a_file_is_read_if_its_owner_alone_can(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"tenants:\n  a: {KEY!r}\nadmin: {OTHER!r}\n")
    path.chmod(0o600)

    keys = load_keys(path)
    path.chmod(0o640)

    assert keys.judge(Access.TENANT, KEY) == Caller(Role.TENANT, "a")
    assert keys.judge(Access.ADMIN, OTHER) == Caller(Role.ADMIN)
    assert keys.judge(Access.ADMIN, KEY) is Verdict.WRONG_ROLE
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(path)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (None, "must be a mapping"),
        ({"tenant": {}}, "must be a mapping"),
        ({"tenants": [KEY]}, "mapping of names"),
        ({"tenants": {"a/b": KEY}}, "must have a name"),
        ({"tenants": {1: KEY}}, "must have a name"),
        ({"tenants": {"a": "short"}}, "16 to 512"),
        ({"tenants": {"a": 1234567890123456}}, "16 to 512"),
        ({"tenants": {"a": "with a space 0123456"}}, "16 to 512"),
        ({"tenants": {"a": KEY}, "admin": [KEY]}, "same key"),
        ({}, "has no keys"),
    ],
)
def test_wrong_files_are_refused(values: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read_keys(values, "keys.yaml")
    assert KEY not in str(caught.value)


def test_no_salt_leads_out_of_a_tenant() -> None:
    words = [None, "b", "b/", "/", "a/b"]
    salts = [Caller(Role.TENANT, name).within_tenant(word) for name in "ab" for word in words]
    assert len(set(salts)) == len(salts)


def test_a_key_that_is_no_ascii_is_unknown() -> None:
    keys = read_keys({"tenants": {"a": KEY}}, "keys.yaml")
    assert keys.judge(Access.ANY, "\udcff") is Verdict.UNKNOWN_KEY
    assert keys.judge(Access.ANY, "") is Verdict.UNKNOWN_KEY
    assert keys.judge(Access.ANY, None) is Verdict.NO_KEY


def test_a_pipe_that_nobody_writes_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is no regular file; expected one of mode 0600"):
        load_keys(path)
