"""Keys: who may use which routes, and whose cached prefixes a request may share."""

import hashlib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import yaml

from raydix.errors import ConfigError
from raydix.ids import TenantId
from raydix.runtime.messages.tenants import TENANT_END, tenant_of

_TENANT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY = re.compile(r"[!-~]{16,512}")
_SECTIONS = ("tenants", "monitor", "admin")


class Access(Enum):
    """The key that a route asks for."""

    OPEN = "open"
    """The route needs no key."""
    ANY = "any"
    TENANT = "tenant"
    MONITOR = "monitor"
    """The route needs the key of a monitor or of the admin."""
    ADMIN = "admin"


class Role(Enum):
    """The role of a key's holder."""

    TENANT = "tenant"
    MONITOR = "monitor"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    role: Role
    tenant: str | None = None
    """The name of the caller's tenant; None where no keys are in use."""

    def within_tenant(self, word: str | None) -> str | None:
        """A salt or a session's name that no other tenant can have; None: the tenant's own."""
        if self.tenant is None:
            return word
        return self.tenant + TENANT_END + (word or "")

    def owns(self, tenant: TenantId) -> bool:
        """Whether what a tenant has is the caller's; without keys all is."""
        return self.tenant is None or tenant == tenant_of(self.within_tenant(None))


class Verdict(Enum):
    """Why a request is turned away."""

    NO_KEY = "no key"
    SHUT = "shut"
    UNKNOWN_KEY = "unknown key"
    WRONG_ROLE = "wrong role"


LOCAL = Caller(Role.TENANT)
"""Any caller on this host, where no keys are in use."""


class KeyJudge(Protocol):
    """What knows the callers by their keys."""

    def judge(self, access: Access, key: str | None) -> Caller | Verdict:
        """Who the caller is, or why the route is not for it."""


class Keys:
    """The callers by their keys, of which digests alone are kept."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = {_digest(key): caller for key, caller in callers.items()}

    def judge(self, access: Access, key: str | None) -> Caller | Verdict:
        """Tell who calls by the key that a request brings, as `KeyJudge.judge` says."""
        if access is Access.OPEN:
            return LOCAL
        if key is None:
            return Verdict.NO_KEY
        caller = self._callers.get(_digest(key))
        if caller is None:
            return Verdict.UNKNOWN_KEY
        return caller if _may(caller.role, access) else Verdict.WRONG_ROLE


def judge_without_keys(access: Access) -> Caller | Verdict:
    """Every route is open but those of the admin, on loopback without keys."""
    return Verdict.SHUT if access is Access.ADMIN else LOCAL


def load_keys(path: Path) -> Keys:
    """Keys of a YAML file that its owner alone can read.

    It has `tenants` (a mapping of names to a key or a list of keys), and may have `monitor` and
    `admin` (a key or a list of keys). Raises ConfigError.
    """
    try:
        mode = path.stat().st_mode
        # It is read again and again; a pipe without a writer would let each of these wait.
        if not stat.S_ISREG(mode):
            raise ConfigError(f"The key file {path} is no regular file; expected one of mode 0600.")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"The key file {path} is open to others than its owner. Run chmod 600 {path}."
            )
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The key file {path} is no YAML.") from error
    return read_keys(values, str(path))


def read_keys(values: Any, origin: str) -> Keys:
    """The keys that a mapping names; no error tells a key. Raises ConfigError."""
    if not isinstance(values, dict) or set(values) - set(_SECTIONS):
        raise ConfigError(f"{origin} must be a mapping with {', '.join(_SECTIONS)} and no more.")
    tenants = values.get("tenants") or {}
    if not isinstance(tenants, dict):
        raise ConfigError(f"tenants in {origin} must be a mapping of names to keys.")

    owners = [
        (Caller(Role.TENANT, tenant_name(name, origin)), keys) for name, keys in tenants.items()
    ]
    owners += [
        (Caller(role), values[role.value])
        for role in (Role.MONITOR, Role.ADMIN)
        if values.get(role.value) is not None
    ]
    callers: dict[str, Caller] = {}
    for caller, keys in owners:
        for key in keys if isinstance(keys, list) else [keys]:
            _check_key(key, caller, origin)
            if key in callers:
                raise ConfigError(f"Two entries of {origin} have the same key. Give each its own.")
            callers[key] = caller
    if not callers:
        raise ConfigError(f"{origin} has no keys. Name at least one tenant with a key.")
    return Keys(callers)


def _may(role: Role, access: Access) -> bool:
    match access:
        case Access.OPEN | Access.ANY:
            return True
        case Access.TENANT:
            # An admin is no tenant: what it asked would share its prefixes with somebody's.
            return role is Role.TENANT
        case Access.MONITOR:
            return role in (Role.MONITOR, Role.ADMIN)
        case Access.ADMIN:
            return role is Role.ADMIN


def tenant_name(name: object, origin: str) -> str:
    """The name, if a tenant can have it. Raises ConfigError."""
    if not (isinstance(name, str) and _TENANT_NAME.fullmatch(name)):
        raise ConfigError(
            f"The tenant {name!r} in {origin} must have a name of 1 to 64 letters, digits, dots, "
            "dashes and underscores."
        )
    return name


def _check_key(key: object, caller: Caller, origin: str) -> None:
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        whose = caller.tenant or caller.role.value
        raise ConfigError(
            f"A key of {whose} in {origin} must be a string of 16 to 512 printable ASCII "
            "characters without spaces. Try: openssl rand -hex 24."
        )


def _digest(key: str) -> bytes:
    # Looking up a digest takes the same time whatever part of a guess is right.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
