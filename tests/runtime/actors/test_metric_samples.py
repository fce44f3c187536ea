from raydix.runtime.actors.metric_samples import host_samples, scheduler_samples
from raydix.runtime.cache.arena_geometry import plan_arena
from raydix.runtime.cache.host_events import HostSettings, StorageSettings
from raydix.runtime.cache.host_memory import HostMemoryCore
from raydix.runtime.cache.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings

LAYOUT = KvLayout(
    page_size=16,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4),),
)


def test_every_figure_of_the_cores_that_has_a_metric_becomes_a_sample() -> None:
    core = SchedulerCore(SchedulerSettings(layout=LAYOUT, num_lanes=1, num_pages=8, max_model_len=64))
    samples = scheduler_samples({**core.stats(), "prompt_tokens_l2": 5, "finished_stop": 2, "scheduler_cpu_s": 0.5})
    values = {(sample.metric.name, sample.labels): sample.value for sample in samples}
    assert values["prompt_tokens_cached_by_source_total", ("l2",)] == 5
    assert values["request_success_total", ("stop",)] == 2
    assert values["l1_pages", ("all", "used")] == 0
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)


def test_l3_reads_count_bytes_errors_and_bad_objects() -> None:
    settings = HostSettings(page_size=16, storage=StorageSettings())
    core = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), settings)
    figures = {**core.stats(), "l3_reads_ok": 3, "l3_reads_bad_checksum": 2, "l3_pages_written": 4}
    samples = host_samples(figures, "file", 1000)
    values = {(sample.metric.name, sample.labels): sample.value for sample in samples}
    assert values["l3_read_bytes_total", ("file",)] == 3000
    assert values["l3_write_bytes_total", ("file",)] == 4000
    assert values["l3_errors_total", ("file", "read", "bad_checksum")] == 2
    assert values["kv_verify_failures_total", ("bad_checksum",)] == 2
    assert values["l3_breaker_state", ("file",)] == 0


def test_host_without_l3_has_no_l3_metrics() -> None:
    core = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), HostSettings(page_size=16))
    assert not any(sample.metric.name.startswith("l3_") for sample in host_samples(core.stats(), None, 1000))
