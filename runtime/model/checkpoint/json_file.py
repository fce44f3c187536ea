"""Read the JSON files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from raydix.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises CheckpointError if the file is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; a checkpoint folder needs it.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON: {error}. Fetch the checkpoint again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a {type(value).__name__}; expected a JSON object. Fetch it again."
        )
    return value
