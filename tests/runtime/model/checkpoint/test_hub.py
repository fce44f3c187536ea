"""Models on the Hugging Face Hub: what is fetched, and what is said where it cannot be."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path

import pytest
from huggingface_hub import errors

from raydix.errors import CheckpointError
from raydix.runtime.config.paths import HubName
from raydix.runtime.model.checkpoint.hub import (
    checkpoint_folder,
    hub_environment,
    pin_model_path,
    settings_folder,
)
from tests.hub_cache import COMMIT, lay_out

FILES = ("config.json", "tokenizer.json", "merges.txt", "chat_template.jinja", "model.safetensors")


class FakeHub:
    """A hub with one model, or one that fails."""

    def __init__(self, root: Path, error: Exception | None = None) -> None:
        self.root = root
        self.error = error
        self.asked: list[tuple[HubName, tuple[str, ...]]] = []

    def fetch(self, name: HubName, patterns: Sequence[str]) -> str:
        self.asked.append((name, tuple(patterns)))
        if self.error is not None:
            raise self.error
        return str(self.root / "snapshots" / COMMIT)


def matched(patterns: Sequence[str]) -> set[str]:
    return {file for file in FILES if any(fnmatch.fnmatch(file, each) for each in patterns)}


def test_folder_is_itself_and_asks_nobody(tmp_path: Path) -> None:
    hub = FakeHub(tmp_path)
    assert checkpoint_folder(str(tmp_path), hub) == tmp_path
    assert pin_model_path(str(tmp_path), hub) == str(tmp_path)
    assert not hub.asked


def test_weights_are_fetched_only_by_who_loads_them(tmp_path: Path) -> None:
    hub = FakeHub(tmp_path)
    folder = tmp_path / "snapshots" / COMMIT
    assert settings_folder("org/name", hub) == checkpoint_folder("org/name@v1", hub) == folder
    (_, settings), (name, weights) = hub.asked
    assert matched(settings) == set(FILES) - {"model.safetensors"}
    assert matched(weights) == set(FILES)
    assert name == HubName("org/name", "v1")


def test_model_is_pinned_to_the_commit_that_was_found(tmp_path: Path) -> None:
    assert pin_model_path("org/name", FakeHub(tmp_path)) == f"org/name@{COMMIT}"
    assert pin_model_path(f"org/name@{COMMIT}", FakeHub(tmp_path)) == f"org/name@{COMMIT}"


class Answer:
    """What the library's HTTP errors are made of."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.request = None


def http(kind: type[errors.HfHubHTTPError], text: str) -> Exception:
    return kind(text, response=Answer())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (http(errors.GatedRepoError, "403"), r"accepted its terms.*huggingface.co/org/name.*TOKEN"),
        (http(errors.RepositoryNotFoundError, "404"), r"no such model.*HF_TOKEN"),
        (http(errors.RevisionNotFoundError, "404"), r"no such revision.*@"),
        (errors.LocalEntryNotFoundError("offline"), r"out of reach .*hf download org/name"),
        (errors.OfflineModeIsEnabled("offline"), r"out of reach .*unset HF_HUB_OFFLINE"),
        (OSError(28, "No space left on device"), r"cannot be downloaded .*No space left"),
        (RuntimeError(), r"cannot be downloaded \(RuntimeError\)"),
    ],
)
def test_model_that_cannot_be_had_says_what_to_do(
    tmp_path: Path, error: Exception, advice: str
) -> None:
    with pytest.raises(
        CheckpointError, match=f"model.path is org/name, which is no folder.*{advice}"
    ):
        checkpoint_folder("org/name", FakeHub(tmp_path, error))


def test_other_processes_are_told_how_this_one_finds_the_hub() -> None:
    environment = {"HF_HOME": "/cache", "HF_HUB_OFFLINE": "1", "PATH": "/bin"}
    assert hub_environment("/model", environment) == {}
    assert hub_environment("org/name", environment) == {"HF_HOME": "/cache", "HF_HUB_OFFLINE": "1"}


def test_cached_model_is_found_offline_by_name_branch_and_commit(
    hub_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("source")
    (source / "config.json").write_text("{}")
    snapshot = lay_out(hub_cache, source)
    for name in ("org/name", "org/name@main", f"org/name@{COMMIT}"):
        assert settings_folder(name) == snapshot
    assert pin_model_path("org/name") == f"org/name@{COMMIT}"


def test_model_that_is_not_cached_says_offline_what_to_do(hub_cache: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cache lacks it.*hf download org/other"):
        settings_folder("org/other")
