"""What every L3 backend must do, on the backends of plugins/storage: the suites of the others."""

from tests.runtime.storage.test_conformance import *  # noqa: F403
from tests.runtime.storage.test_conformance_bounds import *  # noqa: F403
from tests.runtime.storage.test_conformance_restart import *  # noqa: F403
