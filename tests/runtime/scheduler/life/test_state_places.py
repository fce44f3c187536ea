"""Which states a request leaves in L1 while it decodes."""

from dataclasses import replace

from raydix.runtime.config.kv_layout import GroupKind
from tests.runtime.scheduler.core_driver import BASE, CoreDriver

STATE = replace(BASE.layout.groups[0], kind=GroupKind.STATE, layers=(2,), head_dim=1024)
LAYOUT = replace(BASE.layout, groups=(*BASE.layout.groups, STATE))


def test_an_answer_leaves_states_at_regular_distances_and_at_its_end() -> None:
    driver = CoreDriver(layout=LAYOUT, num_pages=(200, 200), max_model_len=600)
    distance = driver.settings.checkpoint_distance
    assert distance == 8

    driver.submit(list(range(9)), max_tokens=400)
    driver.run()

    stats = driver.core.stats()
    num_pages = (9 + 400 - 1) // 4
    assert stats["l1_cached_pages_0"] == num_pages
    # Beside the regular ones: the end of the prompt and that of the answer.
    assert stats["l1_cached_pages_1"] == num_pages // distance + 2
