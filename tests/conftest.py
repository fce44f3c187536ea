"""Settings that every test shares. They must precede the first import of torch and ray."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

pytest_plugins = ["tests.ray_cluster"]
