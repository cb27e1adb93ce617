"""For all tests."""

import os

from hypothesis import HealthCheck, settings

# Some tests import libraries, or make plugins, without discovering any plugin.
for name, value in {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}.items():
    os.environ.setdefault(name, value)

# How fast a machine is today says nothing about the code.
settings.register_profile("optvet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("optvet")
