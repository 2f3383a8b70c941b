"""More machines than one: the server over replicas that Ray Serve runs (extra ``ray``).

``rase cluster run`` starts it; ``rase.cluster.ray:app`` is the target for ``serve run``;
``rase.cluster.data.Completions`` answers the rows of a Ray data set. Of this package only ``ray``,
``handles`` and ``routing`` import Ray.
"""

from __future__ import annotations

import os

__all__: list[str] = []

# Ray looks when it is imported and started.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that it runs, nor what
os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every line of the log is one request's
os.environ.setdefault("RAY_COLOR_PREFIX", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # replicas do what the machine is there for
# A machine that computes with all it has is slow to start a process, and no less healthy.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
os.environ.setdefault("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "30")
