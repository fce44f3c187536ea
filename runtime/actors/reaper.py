"""Ends what a private Ray cluster leaves behind when its driver is killed. Run as a script, without imports of ours.

Ray's own agents notice the loss of their node only after half a minute. This process notices the driver's end through
its standard input, which the driver holds open, and then kills every process that still has a file of the cluster's
folder open, and removes that folder.
"""

import os
import select
import shutil
import signal
import sys
import time

GRACE_S = 2.0
PATIENCE_S = 30.0


def users_of(folder: str, spared: set[int]) -> list[int]:
    """Processes of this user, but those spared, that have a file below `folder` open or as their working folder."""
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) in spared:
            continue
        try:
            links = [f"/proc/{entry}/cwd", *(f"/proc/{entry}/fd/{fd}" for fd in os.listdir(f"/proc/{entry}/fd"))]
            if any(_target(link).startswith(folder + "/") for link in links):
                pids.append(int(entry))
        except OSError:
            continue
    return pids


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def reap(folder: str, driver_pid: int, driver: int) -> None:
    """Wait for the driver to let go of us or to end, then end what is left of its cluster and remove `folder`.

    A driver that lets go lives on, perhaps with a log of its old cluster still open: it is spared. `driver` is its pidfd.
    """
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    poll.register(driver, select.POLLIN)
    poll.poll()
    spared = {os.getpid(), driver_pid}
    time.sleep(GRACE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while (pids := users_of(folder, spared)) and time.monotonic() < deadline_s:
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
        driver_pidfd = os.open(os.devnull, os.O_RDONLY)  # always readable: the driver is gone already
    reap(sys.argv[1], int(sys.argv[2]), driver_pidfd)
