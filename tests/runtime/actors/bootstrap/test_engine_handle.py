import asyncio
import subprocess
import sys
from types import SimpleNamespace

from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout


def facts_of(supervisor_pid: int) -> EngineFacts:
    group = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4)
    return EngineFacts(
        name="doomed",
        supervisor_pid=supervisor_pid,
        client_address="unix:/nowhere",
        secret=b"",
        model_path="/nowhere",
        max_model_len=8,
        vocab_size=8,
        eos_token_ids=(),
        layout=KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=(group,)),
        num_pages=(1,),
        arena_bytes=None,
    )


async def test_shutdown_ends_with_the_supervisor_though_ray_does_not_tell_of_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    asked = asyncio.Event()

    def never_answer() -> "asyncio.Future[None]":
        asked.set()
        return asyncio.get_running_loop().create_future()

    supervisor = SimpleNamespace(shutdown=SimpleNamespace(remote=never_answer))
    with process:
        ending = asyncio.create_task(EngineHandle(facts_of(process.pid), supervisor).shutdown())
        await asked.wait()
        assert not ending.done()
        process.kill()
        async with asyncio.timeout(10):
            await ending
