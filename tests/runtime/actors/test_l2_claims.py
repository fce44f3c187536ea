"""What L2s take of a node is known of the living, and two that come at once see each other."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raydix.runtime.actors import l2_claims as files
from raydix.runtime.actors.l2_claims import hold_claim, l2_claims, taking_turns
from raydix.runtime.actors.supervision.node_share import L2Claim

HOLDER = """
import sys
from raydix.runtime.actors import l2_claims as files
from raydix.runtime.actors.supervision.node_share import L2Claim
from pathlib import Path
files.user_folder = lambda: Path(sys.argv[1])
held = files.hold_claim(L2Claim(node="n", name="l2-b", model_path="m", size_bytes=7, total_bytes=9))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that no engine of this user has."""
    monkeypatch.setattr(files, "user_folder", lambda: tmp_path)
    return tmp_path


def claim(name: str, node: str = "n") -> L2Claim:
    return L2Claim(node=node, name=name, model_path="m", size_bytes=7, total_bytes=9)


def test_a_claim_is_seen_until_it_is_given_back_and_on_its_node_alone() -> None:
    own, other = hold_claim(claim("l2-a")), hold_claim(claim("l2-a", node="elsewhere"))
    assert l2_claims("n") == [claim("l2-a")]
    assert [each.node for each in l2_claims("elsewhere")] == ["elsewhere"]
    own.remove()
    other.remove()
    assert l2_claims("n") == []


def test_what_maker_and_l2_hold_counts_once() -> None:
    makers, own = hold_claim(claim("l2-a")), hold_claim(claim("l2-a"))
    assert l2_claims("n") == [claim("l2-a")]
    makers.remove()
    assert l2_claims("n") == [claim("l2-a")]
    own.remove()


def test_a_claim_ends_with_its_process_and_its_file_with_the_next_claim(folder: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == "held\n"
        assert l2_claims("n") == [claim("l2-b")]
        holder.kill()
    assert l2_claims("n") == []
    own = hold_claim(claim("l2-a"))
    assert len(list(folder.glob("*.l2-bytes"))) == 1
    own.remove()


def test_who_claims_sees_what_was_claimed_in_the_turn_before() -> None:
    """Each claims only if nobody has: of many that come at once one does."""
    held = []

    def come(name: str) -> None:
        with taking_turns("n"):
            if not l2_claims("n"):
                held.append(hold_claim(claim(name)))

    threads = [threading.Thread(target=come, args=(f"l2-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    held[0].remove()
