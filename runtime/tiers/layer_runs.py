"""How the layers of a transfer are cut into runs, each copied at once and waited for together."""

from raydix.runtime.tiers.transfers import Direction, LayerCopy, Transfer

RUN_BYTES = 8 << 20
"""Bytes of the layers that share an event of a load.

Fewer events cost less; the first one must still come early.
"""
RUN_PIECE_BYTES = 128 << 10
"""Bytes of each page up to which they share it: the copy engine is fast only for large pieces."""
SHARED_RUN_PIECE_BYTES = 2 * RUN_PIECE_BYTES
"""The same of a load that all ranks share: a run is given to the peers and awaited, too, which
costs the host about as much time again.
"""
MIN_RUNS = 8
"""For the sake of large pieces a run takes at most one layer in so many. A step that lasts as long
as its load then has just the last run left to compute when the load ends.
"""


def layer_runs(transfer: Transfer) -> list[list[LayerCopy]]:
    """Its layers in order, cut into runs that are long enough; the last one may be shorter.

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
