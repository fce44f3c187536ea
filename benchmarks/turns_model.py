"""The load of `benchmarks.turns` on the real cores, a virtual clock and a modelled device.

    python -m benchmarks.turns_model                                   # 16 streams
    python -m benchmarks.turns_model --streams 32 --sessions 96 --l2-gib 48
    python -m benchmarks.turns_model --slowdown 3 5 100 --chunk 2048

A second each, without a GPU: it tells which part of a figure a policy can change.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.cores.modelled_device import ModelledDevice, ModelledStep
from benchmarks.cores.scheduler_engine import Engine
from benchmarks.model.model_shapes import make_layout
from benchmarks.records.command_line import count, make_parser, positive, quantity, run
from benchmarks.turns import Turns
from raydix.ids import AskingId
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.scheduler.settings import SchedulerSettings

_CLIENT_S = 2.5e-3
"""The time from the call of `generate` to the Scheduler, and from an answer to the next call."""


class Conversations:
    """Owns: who says what next, and when each answer came. Times are in seconds."""

    def __init__(
        self, settings: SchedulerSettings, load: Turns, device: ModelledDevice, l2_pages: int
    ) -> None:
        self._engine = Engine(
            settings, l2_pages=l2_pages, carry_out=device.carry_out, on_output=self._hear
        )
        self._load = load
        self._random = np.random.default_rng(0)
        self._asked_s: dict[AskingId, tuple[int, float]] = {}
        self._first_s: dict[AskingId, float] = {}
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self._histories: list[list[int]] = []
        self._lengths = np.zeros((0, 0), dtype=np.int64)
        self._waiting = iter(np.ndindex(0, 0))

    def play(self, num_streams: int, num_turns: int, num_sessions: int) -> float:
        """All turns of all sessions; returns the wall time."""
        load = self._load
        self._lengths = np.random.default_rng(1).integers(
            load.min_new_tokens, load.max_new_tokens + 1, (num_turns, num_sessions)
        )
        system = self._draw(load.system_tokens)
        self._histories = [list(system) for _ in range(num_sessions)]
        self._waiting = iter(np.ndindex(num_turns, num_sessions))
        self.ttft_s, self.tpot_s = [], []

        began_s = self._engine.now_s
        for _ in range(num_streams):
            self._ask()
        self._engine.run()
        wall_s = self._engine.now_s - began_s
        self._engine.settle()
        return wall_s

    def _draw(self, num_tokens: int) -> list[int]:
        return self._random.integers(0, 30_000, num_tokens).tolist()

    def _ask(self) -> None:
        following = next(self._waiting, None)
        if following is None:
            return
        turn, session = following
        history = self._histories[session]
        history += self._draw(int(self._lengths[turn, session]))
        now_s = self._engine.now_s
        # An answer is followed by the next question: both take the client its time.
        asking = self._engine.submit(
            history, max_tokens=self._load.output_tokens, after_s=2 * _CLIENT_S
        )
        self._asked_s[asking] = session, now_s + _CLIENT_S

    def _hear(self, asking: AskingId, num_tokens: int, has_ended: bool) -> None:
        now_s = self._engine.now_s
        session, asked_s = self._asked_s[asking]
        if num_tokens and asking not in self._first_s:
            self._first_s[asking] = now_s
            self.ttft_s.append(now_s - asked_s)
        if has_ended:
            later_s = now_s - self._first_s.pop(asking)
            del self._asked_s[asking]
            self.tpot_s.append(later_s / (self._load.output_tokens - 1))
            self._histories[session] += self._draw(self._load.output_tokens)
            self._ask()


def settings_of(load: Turns, slowdown: float) -> SchedulerSettings:
    """The settings of the Scheduler on an H200."""
    layout = make_layout(load.page_size, num_layers=16, num_kv_heads=8, head_dim=128, dtype_bytes=2)
    return SchedulerSettings(
        layout=layout,
        num_lanes=1,
        num_pages=(load.l1_tokens // load.page_size,),
        max_model_len=load.max_model_len,
        prefill_budget_tokens=load.chunk_tokens,
        max_decode_slowdown=slowdown,
        load=LoadPolicy.AUTO,
        launch_s=0.005,
        start_prefill_tokens_per_s=200e3,
        start_prefill_s=0.005,
        start_load_bytes_per_s=50e9,
        lookup_deadline_s=1e9,
    )


def describe(load: Turns, num_streams: int, slowdown: float, saved_ms: float) -> str:
    """One line of figures."""
    settings = settings_of(load, slowdown)
    page_bytes = settings.layout.payload_bytes(0)
    device = ModelledDevice(page_bytes=page_bytes, saved_ms=saved_ms)
    talks = Conversations(settings, load, device, l2_pages=load.l2_bytes // page_bytes)
    talks.play(num_streams, 1, num_streams)
    device.steps.clear()
    wall_s = talks.play(num_streams, load.num_turns, load.num_sessions)

    ms = partial(_percentile_ms, talks)
    decodes = [step for step in device.steps if not step.num_prompt_tokens]
    mixed = [step for step in device.steps if step.num_prompt_tokens]
    return (
        f"{num_streams} streams, chunk {load.chunk_tokens}, slowdown {slowdown:g}: "
        f"wall {wall_s:.2f} s, TTFT p50 {ms('ttft_s', 50):.0f}, p95 {ms('ttft_s', 95):.0f} ms, "
        f"TPOT p50 {ms('tpot_s', 50):.2f} ms; "
        f"{len(decodes)} steps of {_mean_ms(decodes):.2f} ms decode, "
        f"{len(mixed)} of {_mean_ms(mixed):.1f} ms have prompts"
    )


def _percentile_ms(talks: Conversations, name: str, percent: int) -> float:
    values = {"ttft_s": talks.ttft_s, "tpot_s": talks.tpot_s}[name]
    return 1e3 * float(np.percentile(values, percent))


def _mean_ms(steps: Sequence[ModelledStep]) -> float:
    return 1e3 * sum(step.seconds for step in steps) / max(1, len(steps))


def main() -> int:
    """Print a line for each slowdown."""
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=count, default=16)
    parser.add_argument("--sessions", type=count, default=64)
    parser.add_argument("--l2-gib", type=count, default=32)
    parser.add_argument("--chunk", type=count, default=8192)
    parser.add_argument("--slowdown", type=positive, nargs="+", default=[12.0])
    parser.add_argument("--saved-ms", type=quantity, default=0.0, help="of each step with prompts")
    options = parser.parse_args()

    load = Turns(
        num_sessions=options.sessions,
        l2_bytes=options.l2_gib << 30,
        chunk_tokens=options.chunk,
    )
    for slowdown in options.slowdown:
        print(describe(load, options.streams, slowdown, options.saved_ms), flush=True)
    return 0


if __name__ == "__main__":
    run(main)
