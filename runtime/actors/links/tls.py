"""TLS for TCP links, by the certificates that a Ray cluster with TLS has. Optional."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from raydix.errors import ConfigError

_USE = "RAY_USE_TLS"
_FILES = {
    "certificate": "RAY_TLS_SERVER_CERT",
    "key": "RAY_TLS_SERVER_KEY",
    "authority": "RAY_TLS_CA_CERT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of what an end shows, and of whom it believes; each end shows a certificate."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Ray's own files, by Ray's variables; None without RAY_USE_TLS. Raises ConfigError."""
        if environment.get(_USE, "").lower() not in ("1", "true"):
            return None
        missing = [variable for variable in _FILES.values() if not environment.get(variable)]
        if missing:
            raise ConfigError(
                f"{_USE} is set, and {', '.join(missing)} is not. Set it to the path of the file, "
                f"or unset {_USE}."
            )
        return cls(**{name: environment[variable] for name, variable in _FILES.items()})

    def for_listener(self) -> ssl.SSLContext:
        """What a listener uses: who connects must show a certificate, too. Raises ConfigError."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def for_dialer(self) -> ssl.SSLContext:
        """What a dialer uses: the certificate must name the host dialled. Raises ConfigError."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except OSError as error:
            raise ConfigError(
                f"the TLS files {self.certificate}, {self.key} and {self.authority} cannot be "
                f"used: {error}. Correct {', '.join(_FILES.values())}."
            ) from error
        return context
