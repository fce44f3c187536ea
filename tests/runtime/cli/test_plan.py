"""`raydix plan` tells people and programs what sizes of the tiers would find of a trace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.quantised_checkpoints import make_quantised

Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten sessions of three turns, in turn; blocks of 16 tokens."""
    path: Path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    rows = []
    for turn in range(3):
        for session in range(10):
            ids = [0, *[1 + 100 * session + each for each in range(4 * (turn + 1))]]
            rows.append(
                {
                    "timestamp": 1000 * len(rows),
                    "input_length": 16 * len(ids),
                    "output_length": 4,
                    "hash_ids": ids,
                }
            )
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def test_people_read_a_table_and_what_is_worth_most(
    run: Run, capsys: Capture, trace: str, tmp_path: Path
) -> None:
    png = tmp_path / "plan.png"
    arguments = ["--token-bytes", "1KiB", "--l1", "256KiB,1MiB", "--l2", "0,2MiB"]
    arguments += ["--block-tokens", "16", "--euro-per-gib", "60,6,0.2", "--png", str(png)]
    assert run("plan", trace, *arguments) == 0
    out = capsys.readouterr().out
    for words in ("Quick depth", "MIN", "unbounded", "L2 of 2MiB: +", "per euro"):
        assert words in out
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_model_and_a_gpu_say_how_many_blocks_fit(
    run: Run, capsys: Capture, trace: str, tmp_path: Path
) -> None:
    folder: Path = make_checkpoint(tmp_path / "model", Family.QWEN3, seed=3)
    arguments = ["--model", str(folder), "--gpu", "H200", "--block-tokens", "16", "--json"]
    assert run("plan", trace, *arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["choice"]["l1_bytes"] > 100 << 30
    [smallest, *_] = [point for point in figures["tiers"] if point["tier"] == "L1"]
    assert smallest["num_blocks"] > 10**6
    assert figures["mixes"][0]["total"] == pytest.approx(figures["infinite"]), "all fits"


def test_weights_that_a_gpu_keeps_in_float8_leave_more_room_for_pages(
    run: Run, capsys: Capture, trace: str, tmp_path: Path
) -> None:
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "float8 per output")

    def l1_bytes(gpu: str, way: str) -> int:
        arguments = ["--model", str(folder), "--gpu", gpu, "--block-tokens", "16", "--json"]
        setting = f"model.quantization={way}"
        assert run("plan", trace, *arguments, "--set", setting) == 0
        return int(json.loads(capsys.readouterr().out)["choice"]["l1_bytes"])

    assert l1_bytes("H200", "auto") == l1_bytes("H200", "native") > l1_bytes("H200", "restore")
    assert l1_bytes("A100 80GB", "auto") == l1_bytes("A100 80GB", "restore")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --model or --token-bytes"),
        (["--token-bytes", "1KiB"], "nothing says how large L1 is"),
        (["--token-bytes", "1KiB", "--l1", "much"], "--l1 has 'much'"),
        (["--token-bytes", "1KiB", "--gpu", "H200"], "say something of a --model"),
        (["--token-bytes", "1KiB", "--l1", "1MiB", "--count-after", "1"], "--count-after is 1"),
        (["--token-bytes", "1KiB", "--l1", "1MiB", "--euro-per-gib", "1,2"], "three prices"),
        (["--token-bytes", "1KiB", "--l1", "1MiB", "--euro-per-gib", "nan,1,1"], "three prices"),
        (["--token-bytes", "0", "--l1", "1MiB"], "--token-bytes is '0'"),
        (["--token-bytes", "1KiB,2KiB", "--l1", "1MiB"], "--token-bytes is '1KiB,2KiB'"),
        (["--token-bytes", "1KiB", "--l1", ","], "--l1 is ','"),
        (["--token-bytes", "1KiB", "--l1", "1KiB,1MiB"], "--l1 has 1KiB, into which not one"),
        (
            ["--token-bytes", "1KiB", "--l1", "1MiB", "--gpus-per-node", "3"],
            "--gpus-per-node would be ignored",
        ),
        (["--token-bytes", "1KiB", "--l1", "1MiB", "--l3", ""], "--l3 is ''"),
        (["--token-bytes", "1KiB", "--l1", "1MiB", "--png", "/none/plan.png"], "--png /none"),
    ],
)
def test_what_cannot_be_planned_is_told(
    run: Run, capsys: Capture, trace: str, arguments: list[str], words: str
) -> None:
    assert run("plan", trace, "--block-tokens", "16", *arguments) == 1
    assert words in capsys.readouterr().err


def test_prompts_shorter_than_a_block_find_nothing(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "short.jsonl"
    row = {"timestamp": 0, "input_length": 15, "output_length": 4, "hash_ids": [1]}
    path.write_text(2 * (json.dumps(row) + "\n"))
    sizes = ["--token-bytes", "1KiB", "--l1", "1MiB", "--l2", "1MiB", "--block-tokens", "16"]
    assert run("plan", str(path), *sizes, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["infinite"] == figures["mixes"][0]["total"] == 0


@pytest.mark.filterwarnings("error")
def test_a_trace_in_which_nothing_comes_back_is_drawn_without_a_warning(
    run: Run, tmp_path: Path
) -> None:
    path, png = tmp_path / "one.jsonl", tmp_path / "one.png"
    row = {"timestamp": 0, "input_length": 50, "output_length": 4, "hash_ids": [0, 1, 2, 3]}
    path.write_text(json.dumps(row) + "\n")
    sizes = ["--token-bytes", "1KiB", "--l1", "1MiB", "--l2", "1MiB", "--block-tokens", "16"]
    assert run("plan", str(path), *sizes, "--png", str(png)) == 0
    assert png.exists()


@pytest.mark.parametrize(("eviction", "columns"), [("lru", 1), ("slru", 2)])
def test_lru_has_one_column(
    run: Run, capsys: Capture, trace: str, eviction: str, columns: int
) -> None:
    sizes = ["--token-bytes", "1KiB", "--l1", "1MiB", "--l2", "0", "--block-tokens", "16"]
    assert run("plan", trace, *sizes, "--eviction", eviction) == 0
    [head] = [line for line in capsys.readouterr().out.splitlines() if "tier alone" in line]
    assert head.count("lru") == columns
