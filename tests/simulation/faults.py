"""How the simulated world misbehaves."""

from dataclasses import dataclass


@dataclass(slots=True)
class Faults:
    """Times are virtual seconds, and means of what is drawn."""

    link_delay_s: float = 0.002
    turn_s: float = 0.0002
    """What has arrived waits for so long until the Scheduler or HostMemory takes it."""
    together_fraction: float = 0.0
    """The part of decisions that are about several of the events that wait, if several do."""
    step_s: float = 0.010
    ahead_fraction: float = 0.3
    """The part of repetitions that were on the device already when another plan came."""
    token_s: float = 0.0
    """A step takes so much longer for each of its tokens."""
    copy_s: float = 0.020
    report_s: float = 0.001
    """The time from the end of a copy to its report."""
    planner_s: float = 0.050
    """The time to find places for experts."""
    planner_failure_fraction: float = 0.1
    compile_s: float = 0.030
    """The time to compile a grammar."""
    compiler_failure_fraction: float = 0.1
    """The part of grammars that no compiler is there for."""
    storage_s: float = 0.030
    storage_lag_s: float = 0.0
    """Reads and writes of L3 take so much longer, and fail no more often."""
    exists_lag_s: float = 0.0
    """Questions to L3 do."""
    load_lag_s: float = 0.0
    """Copies from L2 to a GPU do."""
    storage_failure_fraction: float = 0.0
    storage_full_fraction: float = 0.0
    """The part of writes that find the storage full."""
    bad_object_fraction: float = 0.0
    pull_s: float = 0.002
    """The time that each page takes from another node."""
    pull_lag_s: float = 0.0
    """Every batch from another node takes so much longer."""
    bad_pull_fraction: float = 0.0
    """The part of pages that are damaged on their way from another node."""
    leased_fraction: float = 0.0
    """The part of batches that another node does not send, but leases to whoever reads them."""
    linger_s: float = 0.100
    """A killed process may go on copying for so long after its links have closed."""
    last_copy_s: float = 0.0
    """What a killed process was copying to L2 takes so much longer, or is lost with it."""
    reconnect_s: float = 0.010
    """Who has lost a link dials anew after so long, half of the time at once."""
    not_finite_fraction: float = 0.0
    """The part of rows that bring numbers that are not finite, on all ranks of the lane, once."""
    lag_fraction: float = 0.0
    """The part of the links to the Scheduler that bring all later, even once their process has the
    next one.
    """
    outbox_bytes: int = 4096
    """A client that has not read so much is given up."""

    def quieten(self) -> None:
        """Nothing fails any more, and everything is quick."""
        self.link_delay_s = self.turn_s = 0.0001
        self.step_s = self.copy_s = self.report_s = 0.001
        self.storage_s = self.compile_s = 0.0005
        self.pull_s = 0.0005
        self.storage_lag_s = self.exists_lag_s = self.load_lag_s = self.pull_lag_s = 0.0
        self.bad_pull_fraction = 0.0
        self.storage_failure_fraction = self.storage_full_fraction = 0.0
        self.bad_object_fraction = self.not_finite_fraction = self.lag_fraction = 0.0
