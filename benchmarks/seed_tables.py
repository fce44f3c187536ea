"""What the tiers find of four made-up workloads, beside the figures that were claimed of them.

    python -m benchmarks.seed_tables                # prints the record, and keeps it
    python -m benchmarks.seed_tables --document     # also writes the table of docs/claims.md

The quick depth of `raydix plan` at three ratios: L1 holds a twentieth, a tenth or a fifth of all
blocks of a workload, L2 four times as much as L1, L3 everything. The workloads' shapes are guesses
(`runtime/foresight/workloads.py`), so the table tells how far the claims hold, not what a user will
find. `moved`: the bytes over the links between GPU, host and storage, against copying each prompt
whole both ways.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import REPOSITORY, Figure, report
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import chains_of
from raydix.runtime.foresight.plan.planning import Mix, Question, Sizes, TierSize, make_plan
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.foresight.workloads import WORKLOADS, make_trace

DOCUMENT = REPOSITORY / "docs" / "claims.md"
MARK = "<!-- made by python -m benchmarks.seed_tables --document -->"
END = "<!-- end of what is made -->"
SEED = 41
L1_PARTS = (0.05, 0.1, 0.2)
L2_PER_L1 = 4
CLAIMED = {
    "chat": (65, 25, 8, 98),
    "code_completion": (45, 30, 20, 95),
    "document_qa": (30, 40, 25, 95),
    "long_context": (15, 35, 45, 95),
}
"""L1, L2, L3 and all, in percent."""


def mixes_of(requests: list[TraceRequest]) -> dict[float, Mix]:
    """What the tiers find, by the part of all blocks that L1 holds."""
    num_blocks = len({block for each in requests for block in each.blocks})
    found = {}
    for part in L1_PARTS:
        l1 = max(1, int(part * num_blocks))
        question = Question(
            requests=requests, block_tokens=BLOCK_TOKENS, eviction=EvictionPolicy.LRU
        )
        sizes = Sizes(
            l1=[TierSize(num_bytes=l1, num_blocks=l1)],
            l2=[TierSize(num_bytes=L2_PER_L1 * l1, num_blocks=L2_PER_L1 * l1)],
            l3=[None],
        )
        [found[part]] = make_plan(question, sizes).mixes
    return found


def shared_percent(requests: list[TraceRequest]) -> float:
    """How much less memory sessions take that share prefixes than if each had its own copy."""
    own: dict[int, set[int]] = {}
    for request in requests:
        own.setdefault(request.session, set()).update(request.blocks)
    distinct = set[int]().union(*own.values())
    return 100 * (1 - len(distinct) / sum(map(len, own.values())))


def moved_part(requests: list[TraceRequest], mix: Mix) -> float:
    """Blocks over the links, of those that whole prompts both ways would be."""
    num_asked = sum(map(len, chains_of(requests, with_partial=False)))
    num_new = len({block for each in requests for block in each.blocks})
    num_tokens = sum(request.num_tokens for request in requests)
    num_loaded = (mix.l2 + mix.l3) / 100 * num_tokens / BLOCK_TOKENS
    return (num_loaded + num_new) / (2 * num_asked)


def measure(name: str) -> Iterator[Figure]:
    """All figures of one workload."""
    requests = make_trace(WORKLOADS[name], SEED)
    yield Figure(name=f"{name}, memory shared", value=shared_percent(requests), unit="%")
    for part, mix in mixes_of(requests).items():
        prefix = f"{name}, L1 {part:.0%}"
        print(prefix, mix, file=sys.stderr, flush=True)
        for what, value in (("L1", mix.l1), ("L2", mix.l2), ("L3", mix.l3), ("all", mix.total)):
            yield Figure(name=f"{prefix}, {what}", value=value, unit="%")
        yield Figure(
            name=f"{prefix}, computed", value=100 / (100 - mix.total), unit="times fewer tokens"
        )
        yield Figure(
            name=f"{prefix}, moved", value=moved_part(requests, mix), unit="of whole prompts"
        )


def table_lines(values: Mapping[str, float]) -> Iterator[str]:
    """The rows of the document's table."""
    yield "| workload | L1 holds | L1 | L2 | L3 | all | computed | moved | memory shared |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, claimed in CLAIMED.items():
        shares = " | ".join(f"{each} %" for each in claimed)
        yield f"| {name}, claimed | not said | {shares} | 3-5 times less | 1/7 | 50-70 % |"
        for part in L1_PARTS:
            prefix = f"{name}, L1 {part:.0%}"
            shares = " | ".join(
                f"{values[f'{prefix}, {what}']:.1f} %" for what in ("L1", "L2", "L3", "all")
            )
            fewer, moved = values[f"{prefix}, computed"], values[f"{prefix}, moved"]
            shared = values[f"{name}, memory shared"]
            yield (
                f"| ... measured | {part:.0%} of all blocks | {shares} | {fewer:.1f} times less "
                f"| 1/{1 / moved:.1f} | {shared:.0f} % |"
            )


def write_table(path: Path, values: Mapping[str, float]) -> None:
    """Put the table between its marks in a document."""
    text = path.read_text()
    start, stop = text.index(MARK) + len(MARK), text.index(END)
    lines = "\n".join(table_lines(values))
    path.write_text(f"{text[:start]}\n{lines}\n{text[stop:]}")


def main() -> int:
    """Returns 1 if a bar is not met: none has one, as the claims say of nothing how it is made."""
    parser = make_parser(__doc__)
    parser.add_argument("--document", action="store_true", help="write the table of claims.md")
    add_results(parser, help="folder for the record")
    arguments = parser.parse_args()
    figures = [figure for name in CLAIMED for figure in measure(name)]
    config = {"seed": SEED, "l2_per_l1": L2_PER_L1, "depth": "quick"}
    status = report("seed_tables", config, figures, keep_in=arguments.results)
    if arguments.document:
        # The record has rounded them, and the table says what the record says.
        record = json.loads((arguments.results / "seed_tables.json").read_text())
        write_table(DOCUMENT, {each["name"]: each["value"] for each in record["figures"]})
    return status


if __name__ == "__main__":
    run(main)
