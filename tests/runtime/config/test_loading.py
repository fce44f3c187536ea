"""A file, a folder, a dict or `--set` makes a checked configuration, or is refused."""

from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.loading import apply_set, load_config, replace_l3

ALL_BACKENDS = (
    "expected 'file', 'redis', 's3', 'mooncake', 'fake', 'plugin', or the name of an installed "
    "plugin ("
)


def test_a_checkpoint_folder_alone_is_a_configuration(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert config.model.path == str(tmp_path)
    assert (config.model.device, config.model.dtype, config.cache.page_size) == (
        "cpu",
        "float32",
        16,
    )
    assert config.cache.l1.num_pages == 1024
    assert config.has_l2
    assert not config.has_l3


def test_cuda_has_its_own_defaults(tmp_path: Path) -> None:
    config = load_config(
        tmp_path, {"model": {"device": "cuda"}, "cache": {"l2": {"bytes_per_node": "1GiB"}}}
    )
    assert (config.model.dtype, config.cache.page_size, config.cache.load) == (
        "bfloat16",
        64,
        "auto",
    )
    assert config.cache.l1.memory_fraction == 0.85


def test_a_file_is_read_and_keywords_are_laid_over_it(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(
        "model: {path: here}\ncache:\n  l1: {num_pages: 8}\n  l2: {bytes_per_node: 64MiB}\n"
    )
    config = load_config(path, {"cache": {"l1": {"num_pages": 32}}})
    assert config.cache.l1.num_pages == 32
    assert config.cache.l2 is not None
    assert config.cache.l2.bytes_per_node == 64 * 2**20


def test_keywords_alone_suffice() -> None:
    assert load_config(None, {"model": {"path": "/x"}}).model.path == "/x"


def test_relative_paths_mean_the_working_directory_wherever_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "engine.yaml"
    file.write_text("model: {path: model}\ncache: {l3: {backend: file, path: l3}}\n")
    monkeypatch.chdir(tmp_path)
    sources: list[Any] = [
        file,
        {"model": {"path": "model"}, "cache": {"l3": {"backend": "file", "path": "./l3"}}},
        load_config(file),
    ]
    for source in sources:
        config = load_config(source)
        assert config.model.path == str(tmp_path / "model")
        assert config.cache.l3 is not None
        assert config.cache.l3.model_dump()["path"] == str(tmp_path / "l3")

    monkeypatch.chdir("/")
    assert load_config(config) == config


def test_name_on_the_hub_stays_one_unless_there_is_such_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("org/name").model.path == "org/name"
    assert load_config(None, {"model": {"path": "org/name@v1"}}).model.path == "org/name@v1"
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert load_config("org/name").model.path == str(tmp_path / "org" / "name")
    assert load_config({"model": {"path": "org/name"}}).model.path.startswith("/")


def test_section_that_comes_from_elsewhere_must_name_an_absolute_path() -> None:
    config = load_config(None, {"model": {"path": "/x"}})
    with pytest.raises(ConfigError, match=r"cache\.l3\.path is 'l3', which is relative"):
        replace_l3(config, {"backend": "file", "path": "l3"})
    changed = replace_l3(config, {"backend": "file", "path": "/l3"})
    assert changed.cache.l3 is not None


def test_a_loaded_configuration_is_a_source_too(tmp_path: Path) -> None:
    config = load_config(
        tmp_path, {"cache": {"write_policy": "write_through_selective", "write_threshold": 3}}
    )
    assert load_config(config) == config
    assert load_config(config, {"parallel": {"dp": 2}}).parallel.dp == 2


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            {"cache": {"l1": {"num_page": 3}}},
            ["cache.l1.num_page is not", "Did you mean cache.l1.num_pages?"],
        ),
        ({"num_pages": 3}, ["num_pages is not", "Did you mean cache.l1.num_pages?"]),
        (
            {"cache": {"l3": {"backend": "file", "path": "x", "max_byte": 1}}},
            ["Did you mean cache.l3.max_bytes?"],
        ),
        (
            {"cache": {"l3": {"backend": "redis", "host": "h"}}},
            ["cache.l3.host is a key of the backends mooncake, not of redis. Leave it out"],
        ),
        (
            {"cache": {"l3": {"backend": "redis", "path": "/l3"}}},
            ["cache.l3.path is a key of the backends file, ", ", not of redis", "under --set"],
        ),
        (
            {"cache": {"l3": {"backend": "redis", "buckets": 3}}},
            ["cache.l3.buckets is not a known key. Did you mean cache.l3.bucket?"],
        ),
        ({"model": "/models/small"}, ["model is '/models/small'", "Set model.path to it."]),
        ({"cache": {"l3": {"backend": "tape"}}}, ["cache.l3.backend is 'tape'", ALL_BACKENDS]),
        ({"cache": {"l3": {"backend": "reddis"}}}, [ALL_BACKENDS, "Did you mean 'redis'?"]),
        ({"cache": {"l3": {"path": "x"}}}, ["cache.l3.backend is missing", ALL_BACKENDS]),
        (
            {"cache": {"l3": {"backend": "file", "path": "x", "access": "all"}}},
            ["'all'", "'owner' or 'group'"],
        ),
        ({"cache": {"l3": {"backend": "fake"}, "l2": None}}, ["cache.l3 needs cache.l2"]),
        ({"cache": {"page_size": 24}}, ["cache.page_size is 24", "power of two in 1..256"]),
        ({"cache": {"page_size": 512}}, ["cache.page_size is 512"]),
        ({"cache": {"eviction": "lruu"}}, ["cache.eviction is 'lruu'", "'lru', "]),
        ({"cache": 3}, ["cache is 3", "section"]),
        (
            {"parallel": {"dp": 3, "tp": 2, "ep": 2}},
            ["parallel.ep is 2", "dp x tp = 6", "Set parallel.ep to 6"],
        ),
        ({"parallel": {"ep": 2}}, ["parallel.ep is 2", "change parallel.dp"]),
        ({"experts": {"dispatch": "pigeon"}}, ["experts.dispatch is 'pigeon'", "'auto', 'gloo'"]),
        ({"cache": {"l1": {"num_pages": True}}}, ["cache.l1.num_pages is True"]),
        (
            {"cache": {"l1": {"num_pages": 4, "memory_fraction": 0.5}}},
            ["exactly one of num_pages and memory_fraction"],
        ),
        ({"cache": {"l1": {"memory_fraction": 0.5}}}, ["cache.l1.memory_fraction is for cuda"]),
        (
            {"cache": {"l2": {"ratio": 1.0, "bytes_per_node": 5}}},
            ["exactly one of bytes_per_node and ratio"],
        ),
        (
            {"cache": {"l2": {"bytes_per_node": "64 apples"}}},
            ["cache.l2.bytes_per_node is '64 apples'", "64MiB"],
        ),
        ({"cache": {"codec": "int4"}}, ["cache.codec is 'int4'", "'none', 'int8' or 'fp8'"]),
        ({"cache": {"kv_dtype": "fp8"}}, ["cache.kv_dtype is 'fp8'", "'auto' or 'fp8_e4m3'"]),
        (
            {"cache": {"codec": "int8", "kv_dtype": "fp8_e4m3"}},
            ["cache.codec is int8, and cache.kv_dtype fp8_e4m3", "Set cache.codec to none"],
        ),
        (
            {"cache": {"codec": "int8", "l2": None}},
            ["cache.codec int8 has no effect", "Set cache.l2"],
        ),
        (
            {"cache": {"codec": "fp8", "prefix_caching": False}},
            ["no effect without cache.prefix_caching"],
        ),
        (
            {"cache": {"write_threshold": 3}},
            ["cache.write_threshold has no effect", "write_through_selective"],
        ),
        (
            {"model": {"max_model_len": 20_000}},
            ["16384 tokens", "raise cache.l1.num_pages to 1250"],
        ),
        ({"model": {"device": "cuda"}}, ["cache.l2.bytes_per_node must be given on cuda", "GiB"]),
        (
            {"model": {"device": "cuda"}, "cache": {"l2": None, "l1": {"copy_delay_s": 1.0}}},
            ["is for cpu"],
        ),
        (
            {"scheduler": {"chunked_prefill_tokens": 100}},
            ["is 100", "multiple of cache.page_size (16)", "Set it to 112"],
        ),
        (
            {"scheduler": {"max_running_requests": 10**10}},
            ["scheduler.max_running_requests is 10000000000", "65536"],
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    tmp_path: Path, overrides: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, overrides)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_every_wrong_key_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache\.page_siz .*scheduler\.polcy "):
        load_config(tmp_path, {"cache": {"page_siz": 1}, "scheduler": {"polcy": "lpm"}})


def test_a_file_of_weights_is_not_read_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\xff")
    with pytest.raises(ConfigError, match=r"model\.gguf is a file of weights; .* Give the folder"):
        load_config(path)


def test_a_name_that_is_no_path_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="nor a name on the Hugging Face Hub"):
        load_config("Qwen3-30B-A3B")


@pytest.mark.parametrize("text", ["a: [", "just words", "- a\n- b"])
def test_a_file_without_sections_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        load_config(path)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("model: {path: a}\ncache:\n  page_size: 16\n  page_size: 32\n")
    with pytest.raises(ConfigError, match="page_size twice, again in line 4"):
        load_config(path)


@pytest.mark.parametrize("text", ["model: &m {path: a, x: *m}", "model: " + "[" * 5000])
def test_a_file_that_holds_itself_or_has_no_bottom_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "endless.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"endless\.yaml holds itself or is nested too deeply"):
        load_config(path)
    with pytest.raises(ConfigError, match="is not a YAML value"):
        apply_set({}, f"model={text.removeprefix('model: ')}")


@pytest.mark.parametrize("text", ["model: {path: {{ model_path }} }", "cache: 3\n? [a]\n: 4"])
def test_a_template_that_was_not_filled_in_is_told_by_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(text)
    line = 1 + text.count("\n", 0, text.find("?"))
    with pytest.raises(ConfigError, match=rf"a list or a mapping for a key in line {line};"):
        load_config(path)


def test_a_key_that_a_set_has_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--set .* has the key num_pages twice"):
        apply_set({}, "cache.l1={num_pages: 3, num_pages: 5}")


def test_a_long_wrong_value_is_told_by_its_beginning() -> None:
    for wrong in ({"model": [7] * 10_000}, {"model": {"device": "x" * 10_000}}):
        with pytest.raises(ConfigError) as caught:
            load_config(wrong)
        assert len(str(caught.value)) < 600


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model is missing .* Give a YAML file"):
        load_config({"cache": {}})


def test_set_writes_one_key_and_keeps_the_others() -> None:
    values = apply_set({"cache": {"l1": {"num_pages": 8}, "page_size": 4}}, "cache.l1.num_pages=64")
    assert values == {"cache": {"l1": {"num_pages": 64}, "page_size": 4}}


def test_set_reads_its_value_as_yaml() -> None:
    values = apply_set(apply_set({}, "cache.l3=null"), "cache.l2={bytes_per_node: 1MiB}")
    assert values == {"cache": {"l3": None, "l2": {"bytes_per_node": "1MiB"}}}


@pytest.mark.parametrize("assignment", ["cache.l1.num_pages", "=3", "cache..l1=3", "cache.l1={"])
def test_a_malformed_set_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        apply_set({}, assignment)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), ("# nothing yet\n", "is empty"), ("- model\n", "holds list")],
)
def test_a_file_without_sections_says_what_it_is(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path} {words}; expected sections such as model"):
        load_config(path)


@pytest.mark.parametrize(
    "sections",
    [
        {"cache": {"l3": {"backend": "file", "path": "/l\0"}}},
        {"cache": {"l3": {"backend": "redis", "url": "redis://l\0"}}},
        {"model": {"path": "l\0"}},
    ],
)
def test_a_nul_in_any_text_is_told_with_its_key(sections: dict[str, Any]) -> None:
    (section,) = sections
    with pytest.raises(
        ConfigError, match=rf"^{section}\..*expected text without the character NUL"
    ):
        load_config({"model": {"path": "/x"}}, sections)


def test_another_l3_whose_path_has_a_nul_is_refused() -> None:
    config = load_config({"model": {"path": "/x"}})
    with pytest.raises(ConfigError, match=r"^cache\.l3\.path is '/l\\x00'; expected text without"):
        replace_l3(config, {"backend": "file", "path": "/l\0"})


@pytest.mark.parametrize("source", [5, True, ["model"], b"model", object()])
def test_what_is_no_source_at_all_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"^The configuration is .*; expected a YAML file"):
        load_config(source)


@pytest.mark.parametrize(
    "sections", [{"model": {"path": ""}}, {"cache": {"l3": {"backend": "file", "path": ""}}}]
)
def test_an_empty_path_is_not_the_working_directory(sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="A path is empty"):
        load_config({"model": {"path": "/x"}}, sections)
    with pytest.raises(ConfigError, match="The configuration's path is empty"):
        load_config("")


def test_half_of_a_surrogate_pair_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^cache\.l3\..*without half a surrogate pair") as caught:
        load_config(
            {"model": {"path": "/x"}}, {"cache": {"l3": {"backend": "file", "path": "/\ud800"}}}
        )
    assert str(caught.value).encode()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value: float) -> None:
    model = {"model": {"path": "/x"}}
    with pytest.raises(ConfigError, match="finite number"):
        load_config(model, {"cache": {"l2": {"ratio": value}}})
    with pytest.raises(ConfigError, match="finite number"):
        load_config(model, {"scheduler": {"max_decode_slowdown": value}})


def test_a_long_prompt_keeps_a_part_of_its_steps() -> None:
    model = {"model": {"path": "/x"}}
    with pytest.raises(ConfigError, match="short_prompt_fraction"):
        load_config(model, {"scheduler": {"short_prompt_fraction": 1.0}})


@pytest.mark.parametrize("text", ["1e4", "1E4", "+1.0e4", "1.e4", "100e+2", "1000000e-2"])
def test_an_exponent_makes_a_number_as_in_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(f"model: {{path: there}}\nscheduler: {{max_asleep_wait_s: {text}}}\n")
    (tmp_path / "there").mkdir()
    overridden = apply_set(
        {"model": {"path": str(tmp_path)}}, f"scheduler.max_asleep_wait_s={text}"
    )
    for source in (path, overridden):
        assert load_config(source).scheduler.max_asleep_wait_s == 10_000.0


@pytest.mark.parametrize("text", ["e4", "1e", "1e4s", "a1e4"])
def test_what_only_looks_like_a_number_stays_text(text: str) -> None:
    assert apply_set({}, f"model.path={text}") == {"model": {"path": text}}
