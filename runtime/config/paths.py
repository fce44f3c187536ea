"""What a path in the configuration means: a folder of whoever wrote it, or a model on the Hub."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError

logger = logging.getLogger(__name__)

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HUB_NAME = re.compile(rf"({_PART}/{_PART})(?:@({_PART}(?:/{_PART})*))?")
_JOB_FOLDER = "/runtime_resources/working_dir_files/"
"""Where Ray unpacks the `working_dir` of a job."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the Hugging Face Hub: ORG/NAME, or ORG/NAME@REVISION."""

    repo_id: str
    revision: str | None
    """A branch, tag or commit; None: the default branch."""

    @staticmethod
    def parse(path: str) -> "HubName | None":
        """The name that `model.path` is, once it is resolved; None if it is a folder's path."""
        match = _HUB_NAME.fullmatch(path)
        return None if match is None else HubName(match[1], match[2])

    def __str__(self) -> str:
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"


def resolve_model_path(path: str, folder: Path) -> str:
    """What `model.path` means to someone in `folder`: an absolute path, or a name on the Hub.

    A name on the Hub that is also that of a folder here means the folder.
    """
    absolute = resolve_path(path, folder)
    is_on_hub = HubName.parse(path) is not None and not Path(absolute).exists()
    return path if is_on_hub else absolute


def resolve_path(path: str, folder: Path) -> str:
    """The absolute path of what someone in `folder` calls `path`; `~` is their home.

    Raises ConfigError if it is empty, or if `~NAME` names no user.
    """
    if not path:
        raise ConfigError(
            "A path is empty, which would mean the working directory; expected a folder or a file. "
            "Write . if that is meant."
        )
    try:
        return str(folder / Path(path).expanduser())
    except RuntimeError:
        raise ConfigError(
            f"{path} begins with the home of a user who is not known here; expected a folder. "
            f"Write its absolute path, or ./{path} if it is called so."
        ) from None


def resolve_l3(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A section `cache.l3` whose path, if it has one, means what it means to someone in `folder`.

    Warns of one that does not outlive the job that this process belongs to.
    """
    _require_section(section)
    path = section.get("path")
    if not isinstance(path, str):
        return dict(section)

    absolute = resolve_path(path, folder)
    if _JOB_FOLDER in absolute:
        logger.warning(
            "cache.l3.path %s is in the folder that Ray has unpacked for this job and removes "
            "after it: L3 will be empty next time. Give an absolute path that outlives the job.",
            absolute,
        )
    return {**section, "path": absolute}


def require_absolute_l3(section: Mapping[str, Any]) -> None:
    """Raise ConfigError if a section `cache.l3` has a relative path."""
    _require_section(section)
    path = section.get("path")
    if isinstance(path, str) and not Path(path).is_absolute():
        raise ConfigError(
            f"cache.l3.path is {path!r}, which is relative to nothing that the engine knows. Give "
            "an absolute path."
        )


def _require_section(section: object) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"cache.l3 is {section!r:.80}; expected a section such as "
            "{'backend': 'file', 'path': 'l3'}."
        )


def model_label(path: str) -> str:
    """What people call the model at a resolved `model.path`."""
    name = HubName.parse(path)
    return Path(path).name if name is None else name.repo_id
