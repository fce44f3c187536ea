"""Ends what a private Ray cluster leaves behind when its driver is killed.

Runs as a script and imports nothing of Raydix.

Ray's own agents notice the loss of their node only after half a minute. This process notices the
driver's end through its standard input, which the driver holds open, and then kills every process
of Ray that still has a file of the cluster's folder open, and removes that folder.
"""

import os
import select
import shutil
import signal
import sys
import time

GRACE_S = 0.5
PATIENCE_S = 30.0


def left_over(folder: str) -> list[int]:
    """The pids of Ray's daemons and workers that have a file below `folder` open.

    The driver and other clients of the cluster have log files there, too; they are no part of it
    and are spared.
    """
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue

        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read()
            is_of_ray = command.startswith(b"ray::") or folder.encode() in command
            if is_of_ray and any(
                _target(f"/proc/{entry}/fd/{fd}").startswith(folder + "/")
                for fd in os.listdir(f"/proc/{entry}/fd")
            ):
                pids.append(int(entry))
        except OSError:
            # It has ended meanwhile, or belongs to another user.
            continue
    return pids


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def reap(folder: str, driver: int) -> None:
    """Wait until the driver, a pidfd, ends or closes our input; then end its cluster."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    poll.register(driver, select.POLLIN)
    poll.poll()

    # Most of Ray ends by itself, and more cleanly.
    time.sleep(GRACE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while (pids := left_over(folder)) and time.monotonic() < deadline_s:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        driver_pidfd = os.pidfd_open(int(sys.argv[2]))
    except ProcessLookupError:
        driver_pidfd = os.open(
            os.devnull, os.O_RDONLY
        )  # always readable: the driver is gone already
    reap(sys.argv[1], driver_pidfd)
