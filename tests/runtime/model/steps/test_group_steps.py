"""Two ranks that share experts carry out plans as one with all of them does, step by step.

On GPUs they are processes, and small steps are CUDA graphs.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import Store

from raydix.ids import RequestId, Slot
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import ALL_FORMS
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.actors.torch_model import load_gpu_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_rows import StepRows
from raydix.runtime.model.steps.step_shapes import StepShape
from tests.checkpoints import MIN_TOP2_GAP, make_checkpoint
from tests.moe.gpu_ranks import run_on_gpus
from tests.runtime.model.steps.uncaptured_steps import without_graphs

NUM_STEPS, PAGE_SIZE, PAGES_PER_REQUEST = 16, 16, 8
WAIT_S = 120
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
}
SAMPLING = DeviceSampling(seed=0, num_logprobs=2)


@dataclass(frozen=True)
class Request:
    """Its prompt is one row of step `first`, after which it decodes up to `last`."""

    slot: int
    num_prompt_tokens: int
    first: int
    last: int

    @property
    def prompt(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.num_prompt_tokens)
        return torch.randint(199, (self.num_prompt_tokens,), generator=generator).tolist()


LANES = (
    (Request(0, 40, 0, 15), Request(1, 9, 6, 15)),
    (Request(2, 17, 3, 11), Request(0, 33, 8, 10)),
)
"""Alone with a prompt, beside decodes, mixed with them, and twice idle."""
NUM_PROMPT_STEPS = 2
"""The number of steps with two rows of some lane, of which one is a prompt."""
Answers = dict[int, list[tuple[int, float]]]
"""The tokens of each slot, and how far the second most likely is behind each."""


def config_of(folder: Path, device: str, dispatch: str, ep: int) -> EngineConfig:
    return load_config(
        {
            "model": {
                "path": str(folder),
                "device": device,
                "dtype": "float32",
                "max_model_len": PAGE_SIZE * PAGES_PER_REQUEST,
            },
            "parallel": {"dp": ep, "ep": ep},
            "experts": {"dispatch": dispatch, "host_store": False, "rebalance": "none"},
            "cache": {"page_size": PAGE_SIZE, "l1": {"num_pages": 32}, "l2": None},
            "scheduler": {"chunked_prefill_tokens": 64, "max_running_requests": 3},
        }
    )


def rows(lane: int, step: int) -> list[tuple[int, int, int, int]]:
    """Slot, start, tokens and output position of each row."""
    found = []
    for each in LANES[lane]:
        position = step - each.first
        if position == 0:
            found.append((each.slot, 0, each.num_prompt_tokens, 0))
        elif 0 < position <= each.last - each.first:
            found.append((each.slot, each.num_prompt_tokens + position - 1, 1, position))
    return found


def plan(lane: int, step: int, lanes: Sequence[int]) -> StepPlan:
    """The plan of a lane which steps together with all of `lanes`."""
    own, new = rows(lane, step), [each for each in LANES[lane] if each.first == step]
    columns = [int32_array(column) for column in zip(*own, strict=True)] or [int32_array([])] * 4
    together = [rows(each, step) for each in lanes] if len(lanes) > 1 else []
    return StepPlan(
        step=step,
        added=tuple(
            AddedRequest(
                slot=Slot(each.slot),
                request_id=RequestId(f"{lane}-{each.slot}"),
                token_ids=int32_array(each.prompt),
                num_prompt_tokens=each.num_prompt_tokens,
                sampling=SAMPLING,
            )
            for each in new
        ),
        tables=tuple(
            TableChanges(
                slots=int32_array([each.slot]),
                starts=int32_array([0]),
                counts=int32_array([PAGES_PER_REQUEST]),
                page_ids=int32_array(range(1 + each.slot * 8, 1 + each.slot * 8 + 8)),
            )
            for each in new
        ),
        row_slots=columns[0],
        row_starts=columns[1],
        row_num_tokens=columns[2],
        row_write_starts=columns[1],
        row_output_positions=columns[3],
        row_loads=int32_array([-1] * len(own)),
        group_rows=int32_array(len(each) for each in together),
        group_tokens=int32_array(sum(row[2] for row in each) for each in together),
    )


class Captured(Enum):
    """Which steps are: in graphs on GPUs, elsewhere without, see `UncapturedSteps`."""

    NONE = auto()
    ALL = auto()
    SOME = auto()
    """All but those of prompts of the second lane, if it has several rows."""


def carry_out(config: EngineConfig, place: RankPlace, lane: int, captured: Captured) -> Answers:
    """All plans of a lane, on one rank."""
    loaded = load_gpu_model(config, place)
    model = loaded.prepare(loaded.report.num_pages)
    runner = model.runner
    assert isinstance(runner, ModelRunner)
    on_cuda = config.model.device == "cuda"
    assert (runner._captured is not None) == (on_cuda and captured is not Captured.NONE)
    steps = None if on_cuda or captured is Captured.NONE else without_graphs(runner)
    if captured is Captured.SOME and lane == 1:
        limit_replays(runner)

    answers: Answers = defaultdict(list)
    outputs = []
    for step in range(NUM_STEPS):
        each = plan(lane, step, range(config.parallel.dp))
        runner.apply(each)
        outputs.append(runner.execute(each, lambda load, layer: None))
    for step, output in enumerate(outputs):
        result = output.to_result(place.rank, step, 0.0)
        for (slot, *_), token, found in zip(
            rows(lane, step), result.token_ids.tolist(), result.logprobs, strict=True
        ):
            assert found is not None
            answers[slot].append((token, found.logprobs[1] - found.logprobs[2]))
    model.close()
    if steps is not None:
        is_prompt = [shape.num_prompt_tiles > 0 for shape in steps.replayed]
        assert len(is_prompt) == NUM_STEPS - (captured is Captured.SOME and lane == 1)
        assert sum(is_prompt) == NUM_PROMPT_STEPS - (captured is Captured.SOME and lane == 1)
    return dict(answers)


def limit_replays(runner: ModelRunner) -> None:
    """Let it compute steps of prompts operation by operation if they have several rows."""
    choose = runner._choose_shapes

    def limited(
        shapes: Sequence[StepShape], rows: StepRows, *others: Any
    ) -> tuple[StepShape | None, StepShape | None]:
        shape, common = choose(shapes, rows, *others)
        is_limited = shape is not None and shape.num_prompt_tiles and len(rows.slots) > 1
        return None if is_limited else shape, common

    runner._choose_shapes = limited  # type: ignore[method-assign]


def be_rank(folder: Path, device: str, dispatch: str, rank: int, captured: Captured) -> Answers:
    place = RankPlace(rank=rank, device_index=rank, meeting=str(folder / f"meeting-{dispatch}"))
    return carry_out(config_of(folder, device, dispatch, 2), place, rank, captured)


def be_process(
    folder: Path,
    dispatch: str,
    captured: Captured,
    store: Store,
    rank: int,
    device: torch.device,
) -> Any:
    return be_rank(folder, "cuda", dispatch, rank, captured)


def on_threads(folder: Path, body: Callable[[int], Answers]) -> list[Answers]:
    with ThreadPoolExecutor(2) as pool:
        return [each.result(WAIT_S) for each in [pool.submit(body, rank) for rank in range(2)]]


@pytest.mark.parametrize(
    ("device", "dispatch", "captured"),
    [
        *(("cpu", "gloo", captured) for captured in Captured),
        *(
            pytest.param("cuda", dispatch, captured, marks=pytest.mark.multi_gpu)
            for dispatch, captured in (
                ("auto", Captured.ALL),
                ("symmetric", Captured.SOME),
                ("nccl", Captured.SOME),
                ("gloo", Captured.NONE),
            )
        ),
    ],
)
@pytest.mark.parametrize("family", [Family.QWEN3_MOE, Family.MIXTRAL])
def test_each_lane_gets_the_tokens_of_a_rank_with_all_experts(
    family: Family,
    device: str,
    dispatch: str,
    captured: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = dict(SIZES)
    if family is Family.MIXTRAL:
        sizes["intermediate_size"] = sizes.pop("moe_intermediate_size")
    make_checkpoint(tmp_path, family, seed=3, num_hidden_layers=2, **sizes)
    alone = config_of(tmp_path, device, "auto", 1)
    is_captured = Captured.NONE if device == "cpu" else Captured.ALL
    expected = [
        carry_out(alone, RankPlace(rank=0, device_index=0), lane, is_captured) for lane in (0, 1)
    ]

    if device == "cpu":
        # Nothing is in graphs, so it will do.
        monkeypatch.setattr(GlooDispatcher, "captured_forms", ALL_FORMS)
        answers = on_threads(
            tmp_path, partial(be_rank, tmp_path, device, dispatch, captured=captured)
        )
    else:
        answers = run_on_gpus(
            tmp_path / "ranks", partial(be_process, tmp_path, dispatch, captured), 2
        )

    for lane, found in enumerate(answers):
        for slot, wanted in expected[lane].items():
            decided = next(
                (n for n, (_, gap) in enumerate(wanted) if gap < MIN_TOP2_GAP), len(wanted)
            )
            assert len(found[slot]) == len(wanted)
            assert decided > 0
            tokens = [[token for token, _ in each[:decided]] for each in (found[slot], wanted)]
            assert tokens[0] == tokens[1]
