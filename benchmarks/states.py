"""How many hits a model with states finds, with how few states, and what hits and decodes take.

    python -m benchmarks.states                        # on cpu: the whole trace, in half a minute
    python -m benchmarks.states --sessions 10 --l1-gib 10
    python -m benchmarks.states --device cuda          # one GPU of 80 GB, in three minutes

Sessions of coding agents are played against the real cores with the layout of Qwen3.6-35B-A3B: a
state weighs as much as the keys and values of 3,216 tokens. Each turn is asked when the one before
it has been answered. An oracle that keeps a state at every page, and never loses one, finds the
longest prefix, in whole pages, that any earlier prompt began with. No model is run.

On a GPU a model of that shape with 12 of its layers serves through Ray: the time to the first
token of a hit in L1 and in L2 beside that of computing, and a batch that decodes beside the
memory's speed (`benchmarks.engine.state_times`).
"""

import asyncio
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.cores.scheduler_engine import Engine
from benchmarks.engine.engines import Options, add_options, options_of
from benchmarks.engine.state_times import measure_times
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.ids import AskingId
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.pool_sizes import largest_pools, pool_pages
from raydix.runtime.scheduler.settings import SchedulerSettings

TRACE = Path(__file__).parent / "traces" / "agentic.jsonl.gz"
BLOCK_TOKENS = 512
PAGE_SIZE = 64
NUM_LAYERS, NUM_FULL = 40, 10
NUM_KEY_HEADS, VALUES_PER_KEY, HEAD_DIM, TAPS = 16, 2, 128, 4
MIN_HIT_RATIO = 0.97
MAX_BYTES_RATIO = 0.10
STATE = 1
_CACHED = ("l1", "l2", "l3", "computed:last_token")

LAYOUT = KvLayout(
    page_size=PAGE_SIZE,
    dtype="bfloat16",
    dtype_bytes=2,
    groups=(
        KvGroup(
            kind=GroupKind.FULL, layers=tuple(range(3, NUM_LAYERS, 4)), num_kv_heads=2, head_dim=256
        ),
        KvGroup(
            kind=GroupKind.STATE,
            layers=tuple(layer for layer in range(NUM_LAYERS) if layer % 4 != 3),
            num_kv_heads=NUM_KEY_HEADS,
            head_dim=HEAD_DIM * (VALUES_PER_KEY * HEAD_DIM + (2 + VALUES_PER_KEY) * (TAPS - 1)),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One prompt of a session. Equal blocks stand for equal prefixes."""

    block_ids: tuple[int, ...]
    num_tokens: int
    output_tokens: int

    def token_ids(self) -> NDArray[np.int32]:
        """Tokens that are equal where blocks are."""
        blocks = np.array(self.block_ids, dtype=np.int64)[:, None] * BLOCK_TOKENS
        tokens = (blocks + np.arange(BLOCK_TOKENS)).ravel()[: self.num_tokens]
        return tokens.astype(np.int32)


class Sessions:
    """Owns: which turn of each session is next. Each follows the answer to the one before."""

    def __init__(self, engine: Engine, turns: Sequence[Sequence[Turn]]) -> None:
        self._engine = engine
        self._waiting = [iter(session) for session in turns]
        self._session_of: dict[AskingId, int] = {}

    def start(self, begins_s: float, session: int) -> None:
        """Ask a session's first turn at this time."""
        self._ask(session, begins_s)

    def hear(self, asking: AskingId, num_tokens: int, has_ended: bool) -> None:
        """Ask the next turn once an answer has ended."""
        if has_ended:
            self._ask(self._session_of.pop(asking), 0.01)

    def _ask(self, session: int, after_s: float) -> None:
        turn = next(self._waiting[session], None)
        if turn is not None:
            asking = self._engine.submit(
                turn.token_ids(), max_tokens=turn.output_tokens, after_s=after_s
            )
            self._session_of[asking] = session


def read_turns(num_sessions: int | None) -> list[list[Turn]]:
    """The turns of each session, in the order of the sessions' first."""
    sessions: dict[str, list[Turn]] = defaultdict(list)
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            sessions[row["session_id"]].append(
                Turn(
                    block_ids=tuple(row["hash_ids"]),
                    num_tokens=row["input_length"],
                    output_tokens=row["output_length"],
                )
            )
    return list(sessions.values())[:num_sessions]


def oracle(turns: Iterator[Turn]) -> tuple[int, int]:
    """Tokens that a state at every page would find, and how many such states there are."""
    known: set[int] = set()
    num_found = num_pages = 0
    for turn in turns:
        num_known = next(
            (i for i, block in enumerate(turn.block_ids) if block not in known), len(turn.block_ids)
        )
        shared = min(num_known * BLOCK_TOKENS, turn.num_tokens - 1)
        num_found += shared // PAGE_SIZE * PAGE_SIZE
        num_pages += max(0, turn.num_tokens - num_known * BLOCK_TOKENS) // PAGE_SIZE
        known.update(turn.block_ids)
    return num_found, num_pages


def l1_pools(num_bytes: int) -> tuple[int, ...]:
    """The pools that an engine makes of so many bytes unless it is told otherwise."""
    config = EngineConfig.model_validate({"model": {"path": "unused"}})
    shard = KvShard(layout=LAYOUT)
    page_bytes = [shard.page_bytes(group) for group in range(len(LAYOUT.groups))]
    return pool_pages(config, LAYOUT, largest_pools(config, LAYOUT, page_bytes, num_bytes))


def measure(
    sessions: Sequence[Sequence[Turn]], *, l1_bytes: int, l2_bytes: int
) -> tuple[float, int]:
    """The part of prompt tokens that came from a cache, and the states that the tiers hold."""
    settings = SchedulerSettings(
        layout=LAYOUT,
        num_lanes=1,
        num_pages=l1_pools(l1_bytes),
        max_model_len=262_144,
        prefill_budget_tokens=8192,
        lookup_deadline_s=1e9,
        step_deadline_s=1e9,
        first_step_deadline_s=1e9,
    )
    bytes_of_all_groups = sum(map(LAYOUT.host_page_bytes, range(len(LAYOUT.groups))))
    playing: list[Sessions] = []
    engine = Engine(
        settings,
        l2_pages=l2_bytes // bytes_of_all_groups,
        on_output=lambda *news: playing[0].hear(*news),
    )
    playing.append(Sessions(engine, sessions))
    for index in range(len(sessions)):
        playing[0].start(1.0 + index, index)
    engine.run()
    engine.settle()
    found = sum(engine.sources[source] for source in _CACHED)
    return found / engine.sources.total(), engine.num_cached_pages(STATE)


def main() -> int:
    """Play the trace, or time a GPU; 1 if the bars are missed."""
    parser = make_parser(__doc__)
    add_options(parser, Options(device="cpu"))
    parser.add_argument("--sessions", type=count, default=None)
    parser.add_argument("--l1-gib", type=count, default=80)
    parser.add_argument("--l2-gib", type=count, default=512)
    arguments = parser.parse_args()
    options = options_of(arguments)
    if options.device == "cuda" or options.is_tiny:
        figures = asyncio.run(measure_times(options))
        return options.report("states_gpu", {"model": "qwen3.6-35b-a3b-l12"}, figures)

    sessions = read_turns(arguments.sessions)
    # The oracle sees turns in the order in which sessions began: no other order finds more.
    num_found, num_oracle_states = oracle(turn for session in sessions for turn in session)
    num_tokens = sum(turn.num_tokens for session in sessions for turn in session)
    hit_rate, num_states = measure(
        sessions,
        l1_bytes=arguments.l1_gib << 30,
        l2_bytes=arguments.l2_gib << 30,
    )
    figures = [
        Figure(
            name="hit rate",
            value=hit_rate,
            unit="1",
            baseline=num_found / num_tokens,
            baseline_name="a state at every page",
        ),
        Figure(
            name="hit rate over the oracle's",
            value=hit_rate * num_tokens / num_found,
            unit="1",
            min_value=MIN_HIT_RATIO,
        ),
        Figure(
            name="bytes of states over the oracle's",
            value=num_states / num_oracle_states,
            unit="1",
            max_value=MAX_BYTES_RATIO,
        ),
    ]
    config = {
        "sessions": len(sessions),
        "turns": sum(map(len, sessions)),
        "l1_gib": arguments.l1_gib,
        "l1_states": l1_pools(arguments.l1_gib << 30)[STATE],
        "l2_gib": arguments.l2_gib,
        "state_bytes": LAYOUT.state_bytes,
    }
    # A part of the trace is no record.
    keep_in = options.results if arguments.sessions is None else None
    return report("states", config, figures, keep_in=keep_in, at_commit=options.commit)


if __name__ == "__main__":
    run(main)
