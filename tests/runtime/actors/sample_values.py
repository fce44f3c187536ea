"""What the tests of metrics share: samples of a few figures, by metric and labels."""

from collections.abc import Sequence

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.metrics import Distribution, Figures, LabelValues, Metric, read_samples

LAYOUT = KvLayout(
    page_size=16,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4),),
)


def values_of(
    metrics: Sequence[Metric], figures: Figures, common_labels: LabelValues = ()
) -> dict[tuple[str, LabelValues], float]:
    """Each sample's value, of a histogram its sum; fails if two have the same metric and labels."""
    samples = read_samples(metrics, figures, common_labels)
    values = {
        (sample.metric.name, sample.labels): sample.value.total
        if isinstance(sample.value, Distribution)
        else sample.value
        for sample in samples
    }
    assert len(values) == len(samples)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)
    return values
