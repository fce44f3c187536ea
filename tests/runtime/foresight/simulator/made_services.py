"""Small services, profiles and requests for tests of the simulator."""

from dataclasses import replace
from typing import Any

from benchmarks.model.model_shapes import make_layout
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.foresight.simulator.node import NodeSettings
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile, RestartTimes, StepTimes
from raydix.runtime.foresight.simulator.requests import ClientRequest
from raydix.runtime.foresight.simulator.simulation import Service
from raydix.runtime.scheduler.settings import SchedulerSettings

PAGE_TOKENS = 16
LAYOUT = make_layout(PAGE_TOKENS, num_layers=2, num_kv_heads=1, head_dim=32, dtype_bytes=2)
PAGE_BYTES = LAYOUT.host_page_bytes(0)
PROFILE = Profile(
    name="test",
    step=StepTimes(fixed_s=0.002, prompt_token_s=1e-4, decode_row_s=1e-4, spread=0.1),
    load=CopyTimes(bytes_per_s=1e9, spread=0.1),
    backup=CopyTimes(bytes_per_s=1e9),
    restart=RestartTimes(rank_s=0.5, host_s=0.1, engine_s=1.0),
)
SCHEDULER = SchedulerSettings(
    layout=LAYOUT, num_lanes=1, num_pages=(64,), max_model_len=512, vocab_size=1000
)


def made_service(
    *, l2_pages: int = 256, scheduler: dict[str, Any] | None = None, **changes: Any
) -> Service:
    """A service of one node with 64 pages of L1 and without L3, unless `changes` say otherwise."""
    of_node = {name: changes.pop(name) for name in ("with_pulls", "roles") if name in changes}
    node = NodeSettings(
        scheduler=replace(SCHEDULER, **(scheduler or {})),
        host=HostSettings(page_size=PAGE_TOKENS),
        arena_bytes=l2_pages * PAGE_BYTES,
        **of_node,
    )
    return Service(node=node, **changes)


def made_request(session: int, num_blocks: int, arrival_s: float, **changes: Any) -> ClientRequest:
    """A request of a session whose prompts begin alike, behind a block that all have."""
    blocks = (0, *range(1000 * session + 1, 1000 * session + num_blocks))
    request = ClientRequest(
        blocks=blocks,
        block_tokens=PAGE_TOKENS,
        num_prompt_tokens=PAGE_TOKENS * num_blocks,
        num_answer_tokens=6,
        session=str(session),
        arrival_s=arrival_s,
    )
    return replace(request, **changes)


def made_sessions(
    num_sessions: int, num_turns: int, gap_s: float = 0.05, **changes: Any
) -> list[ClientRequest]:
    """Sessions that take turns, each turn two blocks longer than the one before."""
    return [
        made_request(session, 3 + 2 * turn, gap_s * (turn * num_sessions + session), **changes)
        for turn in range(num_turns)
        for session in range(num_sessions)
    ]
