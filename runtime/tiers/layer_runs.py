"""How the layers of a transfer are cut into runs, each copied at once and waited for together."""

from raydix.runtime.tiers.transfers import Direction, LayerCopy, Transfer

RUN_BYTES = 8 << 20
"""The bytes of layers that share one event of a load: fewer events cost less, but the first one
must come early.
"""
RUN_PIECE_BYTES = 128 << 10
"""The bytes of each page up to which layers share an event: large pieces are copied faster."""
SHARED_RUN_PIECE_BYTES = 2 * RUN_PIECE_BYTES
"""The bytes of a page's piece up to which layers of a load shared by all ranks share an event. A
run is then also given to peers and awaited, which costs the host about as much again.
"""
MIN_RUNS = 8
"""The number of runs into which a load's layers are cut at the least, even for large pieces. A step
that lasts as long as its load has just the last run left when the load ends.
"""


def layer_runs(transfer: Transfer) -> list[list[LayerCopy]]:
    """The layers in order, cut into runs that are long enough; the last one may be shorter.

    All ranks of a lane cut a load alike. Nobody waits for a layer of a backup, so that is one run:
    whole pages are the largest pieces.
    """
    if transfer.direction is Direction.BACKUP:
        return [list(transfer.layer_copies)] if transfer.layer_copies else []
    max_layers = max(1, len(transfer.layer_copies) // MIN_RUNS)
    runs: list[list[LayerCopy]] = []
    for copy in transfer.layer_copies:
        if not runs or _is_long_enough(runs[-1], transfer, max_layers):
            runs.append([])
        runs[-1].append(copy)
    return runs


def _is_long_enough(run: list[LayerCopy], transfer: Transfer, max_layers: int) -> bool:
    num_bytes = sum(
        (copy.stop - copy.start) * transfer.groups[copy.group].max_pages for copy in run
    )
    piece_bytes = sum(copy.stop - copy.start for copy in run)
    enough_bytes = RUN_PIECE_BYTES if transfer.shared is None else SHARED_RUN_PIECE_BYTES
    return num_bytes >= RUN_BYTES and (piece_bytes >= enough_bytes or len(run) >= max_layers)
