"""The secret that an engine shares with its clients on other hosts.

It comes from a file or from the environment: a command line would show it to every user of a host.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from raydix.errors import ConfigError

SECRET_VARIABLE = "RAYDIX_SECRET"
SECRET_FILE_VARIABLE = "RAYDIX_SECRET_FILE"
_SECRET = re.compile(r"[!-~]{32,1024}")
_ADVICE = "Make one by: (umask 077; openssl rand -hex 32 > FILE)."


def find_secret(path: str | Path | None, environment: Mapping[str, str]) -> bytes | None:
    """The secret in a file, else in RAYDIX_SECRET, else in the file of RAYDIX_SECRET_FILE.

    None if none of them is given. Raises ConfigError; no error tells the secret.
    """
    if path is None and environment.get(SECRET_VARIABLE):
        return _checked(environment[SECRET_VARIABLE], SECRET_VARIABLE)
    path = path or environment.get(SECRET_FILE_VARIABLE) or None
    return None if path is None else _read(Path(path))


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"The secret's file {path} is open to others than its owner. Run chmod 600 {path}."
            )
        text = _text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The secret's file {path} cannot be read ({error}).") from error
    return _checked(text.strip(), str(path))


def _text_of(path: Path) -> str:
    """A pipe to which nobody writes is empty; its opening is not waited for."""
    with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        return file.read()


def _checked(secret: str, origin: str) -> bytes:
    # Long, as guesses can be tried on what a handshake shows.
    if not _SECRET.fullmatch(secret):
        raise ConfigError(
            f"The secret of {origin} has {len(secret)} characters; expected 32 to 1024 printable "
            f"ASCII characters without spaces. {_ADVICE}"
        )
    return secret.encode()


def no_secret(where: str) -> ConfigError:
    """What to tell somebody who must give a secret and gave none."""
    return ConfigError(
        f"{where} needs a secret, and none was given. {_ADVICE} Copy the file to the clients' "
        f"hosts, and name it by --secret-file, by secret_file= or in {SECRET_FILE_VARIABLE}; or "
        f"put the secret itself into {SECRET_VARIABLE}."
    )
