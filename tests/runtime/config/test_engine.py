"""The whole configuration: what it derives, and that documents and examples agree with it."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from tests.dispatch_plugins import install_plugins
from tests.runtime.config.allowed_values import allowed_values

ROOT = Path(__file__).resolve().parents[3]


def test_a_configuration_survives_pickling(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_config(tmp_path).model.path = "other"  # type: ignore[misc]


def test_the_context_is_bounded_by_model_and_cache(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert config.max_model_len(40_960, num_pages=100) == 1600
    assert config.max_model_len(512, num_pages=100) == 512
    asked = load_config(tmp_path, {"model": {"max_model_len": 1024}})
    assert asked.max_model_len(4096, num_pages=100) == 1024
    with pytest.raises(ConfigError, match="knows 512 positions"):
        asked.max_model_len(512, num_pages=100)
    with pytest.raises(ConfigError, match="10 pages"):
        asked.max_model_len(4096, num_pages=10)


def test_lanes_that_share_experts_step_together(tmp_path: Path) -> None:
    parallel = {"dp": 3, "tp": 2}
    assert load_config(tmp_path, {"parallel": parallel}).parallel.lanes_per_group == 1
    shared = load_config(tmp_path, {"parallel": {**parallel, "ep": 6}})
    assert shared.parallel.lanes_per_group == 3


@pytest.mark.parametrize("missing", [{"host_store": False}, {"spare_per_rank": 0}])
def test_rebalancing_is_refused_without_what_it_needs(tmp_path: Path, missing: dict) -> None:
    [name] = missing
    with pytest.raises(ConfigError, match=rf"experts\.{name}.*experts\.rebalance to none"):
        load_config(tmp_path, {"experts": missing})
    load_config(tmp_path, {"experts": {**missing, "rebalance": "none"}})


@pytest.mark.parametrize("dispatch", ["nccl", "symmetric", "deepep", "pigeon"])
def test_what_carries_tokens_between_gpus_is_refused_on_cpu(
    tmp_path: Path, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugins(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    with pytest.raises(ConfigError, match=rf"experts\.dispatch is {dispatch}, which needs GPUs"):
        load_config(tmp_path, {"experts": {"dispatch": dispatch}})
    load_config(tmp_path, {"experts": {"dispatch": "gloo"}})


def test_a_plugin_is_named_like_what_is_no_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "experts": {"dispatch": "pigeon"},
        "model": {"device": "cuda"},
        "cache": {"l2": None},
    }
    with pytest.raises(ConfigError, match=r"experts.dispatch is 'pigeon'.*an installed plugin"):
        load_config(tmp_path, asked)

    install_plugins(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert load_config(tmp_path, asked).experts.dispatch == "pigeon"
    with pytest.raises(
        ConfigError, match=r"fp8, and experts.dispatch pigeon.*expected one of auto"
    ):
        load_config(tmp_path, {**asked, "experts": {"dispatch": "pigeon", "transport": "fp8"}})
    with pytest.raises(ConfigError, match=r"an installed plugin \(.*dodo, .*pigeon, stork\)"):
        load_config(tmp_path, {**asked, "experts": {"dispatch": "crow"}})


def test_rebalancing_can_be_turned_off_as_the_documentation_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: {{path: {tmp_path}}}\nexperts: {{rebalance: none, host_store: false}}")
    assert not load_config(file).experts.host_store


@pytest.mark.parametrize(("text", "overlap"), [("on", "on"), ("off", "off"), ("auto", "auto")])
def test_on_and_off_need_no_quotes(tmp_path: Path, text: str, overlap: str) -> None:
    read = yaml.safe_load(f"{{overlap: {text}}}")
    assert load_config(tmp_path, {"experts": read}).experts.overlap == overlap


def test_the_documentation_describes_every_key_and_no_other() -> None:
    text = (ROOT / "docs/config.md").read_text()
    documented = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert documented == set(allowed_values())


def test_the_documentation_tells_what_each_key_may_be() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| ", (ROOT / "docs/config.md").read_text(), re.M)
    assert dict(rows) == allowed_values()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (key, name)
        for key, words in allowed_values().items()
        if not key.startswith("cache.l3.")
        for name in re.findall("`([^`]+)`", words)
    ],
)
def test_each_name_that_the_schema_allows_can_be_written(
    tmp_path: Path, key: str, name: str
) -> None:
    overrides = yaml.safe_load(name)
    for part in reversed(key.split(".")):
        overrides = {part: overrides}
    # What fits only with other keys may be refused for that, but it has been understood.
    assert f"{key} is '{name}'; expected" not in _refusal(tmp_path, overrides)


def _refusal(folder: Path, overrides: Mapping[str, Any]) -> str:
    """Why a configuration is refused; empty if it is not."""
    try:
        load_config(folder, overrides)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_example_configurations_are_valid_by_the_models_and_by_the_schema(path: Path) -> None:
    assert load_config(path).model.path
    Draft202012Validator(EngineConfig.model_json_schema()).validate(yaml.safe_load(path.open()))


@pytest.mark.parametrize("size", ["1 GiBs", "-1MiB", 0])
def test_the_schema_refuses_what_is_no_size(size: str | int) -> None:
    l3 = {"backend": "file", "path": "x", "max_bytes": size}
    validator = Draft202012Validator(EngineConfig.model_json_schema())
    assert not validator.is_valid({"model": {"path": "x"}, "cache": {"l3": l3}})
    assert validator.is_valid({"model": {"path": "x"}, "cache": {"l3": l3 | {"max_bytes": 1}}})


def test_the_schema_describes_every_key() -> None:
    schema = EngineConfig.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    undescribed = [
        (section["title"], name)
        for section in sections
        for name, field in section.get("properties", {}).items()
        if "description" not in field and "$ref" not in field and name != "backend"
    ]
    assert undescribed == []


def test_the_schema_accepts_sizes_as_the_configuration_does() -> None:
    schema = EngineConfig.model_json_schema()
    size = schema["$defs"]["L2Section"]["properties"]["bytes_per_node"]
    number, text, _ = size["anyOf"]

    assert number == {"minimum": 1, "type": "integer"}
    assert text["type"] == "string"
    accepted = ["96GiB", "1.5 kb", "64"]
    assert [each for each in accepted if re.search(text["pattern"], each)] == accepted
    assert not [each for each in ("GiB", "1 GiBs", "-1MiB") if re.search(text["pattern"], each)]


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ({}, "restore"),
        ({"dtype": "bfloat16"}, "auto"),
        ({"dtype": "float16"}, "restore"),
        ({"dtype": "bfloat16", "deterministic": True}, "restore"),
        ({"dtype": "float32", "quantization": "native"}, "native"),
        ({"dtype": "bfloat16", "quantization": "restore"}, "restore"),
    ],
)
def test_float8_may_stay_by_itself_in_bfloat16_alone(
    tmp_path: Path, model: Mapping[str, Any], way: str
) -> None:
    assert load_config(tmp_path, {"model": model}).quantization == way
