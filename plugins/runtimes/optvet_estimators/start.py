"""What must be set before a library of estimators is imported."""

from __future__ import annotations

import os

# Threads that wait by spinning take the processor from the one they wait for, on a machine that
# does other work too: a LightGBM model of eight trees then takes minutes to judge, not seconds.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
