import json

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.prompt_file import read_prompts


def test_prompts_come_from_the_command_line_and_then_from_the_file(tmp_path):
    lines, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    lines.write_text("one\n\ntwo\n")
    objects.write_text(
        json.dumps("one")
        + "\n"
        + json.dumps([1, 2])
        + "\n"
        + json.dumps({"prompt": "three"})
        + "\n"
    )
    assert read_prompts(["zero"], lines) == ["zero", "one", "two"]
    assert read_prompts([], objects) == ["one", [1, 2], {"prompt": "three"}]


def test_lines_end_where_json_and_editors_of_windows_end_them(tmp_path):
    lines, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    lines.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\x0c\r\n")
    separators = "a\u2028b\u0085c"
    objects.write_text("\ufeff" + json.dumps(separators, ensure_ascii=False) + "\n")

    assert read_prompts([], lines) == ["one", "two\x0c"]
    assert read_prompts([], objects) == [separators]


@pytest.mark.parametrize("content", [None, b"[1,\n", b"\xff\xfe\n", b""])
def test_a_file_without_readable_prompts_is_a_bad_request(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadRequest, match="--prompts-file"):
        read_prompts([], path)


@pytest.mark.parametrize(
    ("name", "problem"), [("absent", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_named_once(tmp_path, name, problem):
    path = tmp_path / name
    with pytest.raises(BadRequest) as caught:
        read_prompts([], path)
    assert str(caught.value) == f"--prompts-file {path} cannot be read: {problem}."


def test_a_bad_line_is_told_by_its_number_in_the_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"good"\n\n{bad\n')

    with pytest.raises(BadRequest, match=r"prompts\.jsonl, line 3 is no JSON from character 2 on"):
        read_prompts([], path)


def test_a_line_that_is_no_prompt_is_told_by_its_number(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"good"\n{"text": "no"}\n')

    with pytest.raises(BadRequest, match=r"line 2: The prompt is a dict with \['text'\]"):
        read_prompts([], path)
