"""The folder of a model, which may be on the Hugging Face Hub and is then brought to its cache."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from raydix.errors import CheckpointError
from raydix.runtime.config.paths import HubName

SETTINGS_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Configuration, tokenizer and chat template."""
WEIGHTS_PATTERNS = (*SETTINGS_PATTERNS, "*.safetensors")
_IGNORED_PATTERNS = ("*/*", "consolidated*")
"""The same weights in other formats, as some models bring them."""
_ENVIRONMENT_PREFIXES = ("HF_", "HUGGING_FACE_")


class Hub(Protocol):
    """Where models are downloaded from."""

    def fetch(self, name: HubName, patterns: Sequence[str]) -> str:
        """The folder of a model's files that fit one of `patterns`, downloaded if need be.

        Its last part is the commit that the revision stands for.
        """
        ...


class HuggingFaceHub:
    """A `Hub` with the library's own cache, offline mode, endpoint and token."""

    def fetch(self, name: HubName, patterns: Sequence[str]) -> str:
        """The folder of the library's own cache, into which it downloads what is missing."""
        # Imported here: it takes a while, and most models are folders.
        from huggingface_hub import snapshot_download

        return snapshot_download(
            name.repo_id,
            revision=name.revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(_IGNORED_PATTERNS),
        )


def settings_folder(path: str, hub: Hub | None = None) -> Path:
    """The folder with the configuration and tokenizer of a resolved `model.path`.

    Raises CheckpointError if a model on the Hub cannot be had.
    """
    return _folder(path, SETTINGS_PATTERNS, hub)


def checkpoint_folder(path: str, hub: Hub | None = None) -> Path:
    """The folder with everything of a resolved `model.path`; see `settings_folder`."""
    return _folder(path, WEIGHTS_PATTERNS, hub)


def require_folder(folder: Path) -> None:
    """Raise CheckpointError unless this is a folder with the configuration of a model."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder. Give the path of a checkpoint's folder, or a name on the "
            "Hugging Face Hub such as Qwen/Qwen3-0.6B."
        )
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder / 'config.json'} does not exist; a checkpoint folder needs it."
        )


def pin_model_path(path: str, hub: Hub | None = None) -> str:
    """A resolved `model.path` that stays the same model whatever happens on the Hub meanwhile.

    Raises CheckpointError if a model on the Hub cannot be had.
    """
    name = HubName.parse(path)
    if name is None:
        return path
    return str(HubName(name.repo_id, settings_folder(path, hub).name))


def hub_environment(path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What other processes have to know to find a model on the Hub as this one does."""
    if HubName.parse(path) is None:
        return {}
    return {
        key: value for key, value in environment.items() if key.startswith(_ENVIRONMENT_PREFIXES)
    }


def _folder(path: str, patterns: Sequence[str], hub: Hub | None) -> Path:
    name = HubName.parse(path)
    if name is None:
        return Path(path)
    try:
        return Path((hub or HuggingFaceHub()).fetch(name, patterns))
    except Exception as error:
        raise CheckpointError(_explain(name, error)) from error


def _explain(name: HubName, error: Exception) -> str:
    """What was wrong, and what to do."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            reason = "and the Hub gives it to those who have accepted its terms alone"
            remedy = f"Accept them at https://huggingface.co/{name.repo_id}, and set HF_TOKEN."
        case errors.RepositoryNotFoundError():
            reason = "and the Hub knows no such model, or does not show it to you"
            remedy = "Correct the name or the path; for a private model set HF_TOKEN."
        case errors.RevisionNotFoundError():
            reason = "and of that model the Hub has no such revision"
            remedy = "Name a branch, a tag or a commit after the @."
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            reason = "the Hub's cache lacks it or a part of it, and the Hub is out of reach"
            remedy = (
                f"Where it can be reached run `hf download {name.repo_id}`, or unset "
                "HF_HUB_OFFLINE; or give the path of a folder."
            )
        case _:
            reason = "and it cannot be downloaded"
            remedy = "Mend that, or download the model and give the path of its folder."
    return f"model.path is {name}, which is no folder here, {reason} ({_brief(error)}). {remedy}"


def _brief(error: Exception) -> str:
    """The first line: the library adds advice of its own."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
