import asyncio
import os
import signal
import subprocess
import sys

import pytest

from raydix.runtime.actors.process import ProcessHandle, ProcessId, wait_for_exit
from tests.descriptors import descriptors_of

SLEEP = [sys.executable, "-c", "input()"]
WITHOUT_FIRST_THREAD = """
import ctypes, sys, threading
def go_on():
    while ") Z " not in open("/proc/self/stat").read():
        pass
    print("goes on", flush=True)
    sys.stdin.read()
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


async def test_stopped_process_is_killed_and_its_end_is_seen() -> None:
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as child:
        handle = ProcessHandle(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        handle.kill()
        await handle.wait()
        handle.close()
    assert child.returncode == -signal.SIGKILL


async def test_waiting_for_a_process_that_is_gone_returns_at_once() -> None:
    child = subprocess.run(SLEEP, stdin=subprocess.DEVNULL, check=False, capture_output=True)
    assert child.returncode != 0
    await wait_for_exit(2**22 - 1)


async def test_handle_of_an_ended_process_keeps_no_descriptor_however_many_waited() -> None:
    before = descriptors_of("pidfd")
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as child:
        handle = ProcessHandle(child.pid)
        waits = [asyncio.create_task(handle.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        handle.kill()
        await asyncio.gather(*waits[1:])
    assert descriptors_of("pidfd") == before
    handle.kill()
    await handle.wait()
    handle.close()


def test_handle_of_a_missing_process_is_an_error() -> None:
    with pytest.raises(ProcessLookupError):
        ProcessHandle(2**22 - 1)


def test_child_ends_with_the_process_it_names() -> None:
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as other:
        imports = "from raydix.runtime.actors.process import end_with"
        code = f"{imports}; end_with({other.pid}); print('up', flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            other.kill()
            assert child.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls the kernel by number")
async def test_process_has_not_ended_while_any_of_its_threads_may_write() -> None:
    command = [sys.executable, "-c", WITHOUT_FIRST_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        process = ProcessId.of(child.pid)
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == b"goes on\n"
        assert process.is_alive
        waiting = asyncio.create_task(process.wait_ended())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        child.kill()
        async with asyncio.timeout(30):
            await waiting
        assert not process.is_alive
