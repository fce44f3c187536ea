"""Plans for experts, each in a process of its own: a thread would hold up the Scheduler's loop."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable

from raydix.errors import EngineDead
from raydix.runtime.scheduler.events import ExpertsPlanned, PlanExperts
from raydix.runtime.scheduler.expert_plans import (
    ExpertFacts,
    ExpertPlan,
    pack_question,
    unpack_reply,
)

logger = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
_PROGRAM = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
os.nice(5)
from raydix.runtime.scheduler.expert_plans import answer
answer(sys.stdin.buffer, sys.stdout.buffer)
"""
"""The program of a planning process. It has its own, as `multiprocessing` would import again
whatever started this process.
"""


class ExpertPlanner:
    """Owns: the processes that plan. Each answers once and ends; it ends with this one, too."""

    def __init__(self, on_planned: Callable[[ExpertsPlanned], None]) -> None:
        self._on_planned = on_planned
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, effect: PlanExperts, facts: ExpertFacts) -> None:
        """Begin to plan; the answer comes through `on_planned`, on the event loop."""
        task = asyncio.get_running_loop().create_task(self._plan(effect, facts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End all of them; none answers any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _plan(self, effect: PlanExperts, facts: ExpertFacts) -> None:
        plan: ExpertPlan | None = None
        wanted = effect.wanted
        try:
            question = pack_question(wanted.current, wanted.rows_per_step_LE, facts)
            async with asyncio.timeout(_TIMEOUT_S):
                plan = unpack_reply(await _ask_process(question), wanted.current)
        except (OSError, ValueError, TimeoutError, EngineDead) as error:
            logger.warning("experts stay where they are, as no plan could be made: %s", error)
        number = wanted.number
        self._on_planned(ExpertsPlanned(step_group=effect.step_group, number=number, plan=plan))


async def _ask_process(question: bytes) -> bytes:
    """Raises EngineDead if the process fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        json.dumps(sys.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        reply, complaint = await process.communicate(question)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise EngineDead(f"the planner ended with {process.returncode}: {' '.join(last)}")
    return reply
