"""The metrics of experts that ranks share, from the figures of `ExpertBalance`."""

from raydix.runtime.metrics import Figure, Unit, counter, gauge

EXPERT_METRICS = (
    gauge(
        "expert_balancedness",
        Unit.FRACTION,
        "Rows of the mean rank by those of the busiest: the mean over layers, and of sums.",
        Figure("expert_balance_mean_of_layers", ("mean_of_layers",)),
        Figure("expert_balance_ratio_of_sums", ("ratio_of_sums",)),
        labels=("way",),
    ),
    gauge(
        "expert_time_imbalance",
        Unit.FRACTION,
        "Predicted time of the experts' layers by that of even ranks, at the last look.",
        Figure("expert_time_imbalance", ("found",)),
        Figure("expert_time_imbalance_wanted", ("planned",)),
        labels=("state",),
    ),
    counter(
        "expert_moves_total",
        Unit.COUNT,
        "Experts that were copied into seats while serving.",
        Figure("expert_moves"),
    ),
    gauge(
        "expert_moves_left",
        Unit.COUNT,
        "Copies of the plan under way that have not landed.",
        Figure("expert_moves_left"),
    ),
    gauge(
        "expert_placement_version",
        Unit.COUNT,
        "Changes of the placement since the start.",
        Figure("expert_placement_version"),
    ),
    gauge(
        "expert_migration_stalled",
        Unit.STATE,
        "1 while experts should move and have not for 512 steps.",
        Figure("expert_migration_stalled"),
    ),
    gauge(
        "expert_migration_progress_age_seconds",
        Unit.SECONDS,
        "Time since the migration under way got on; 0 without one.",
        Figure("expert_migration_progress_age_s"),
    ),
)
