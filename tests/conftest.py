"""For all tests."""

import os

import pytest
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


@pytest.fixture(autouse=True, scope="session")
def folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let tasks of tests leave notes there for them: workers write among their own files alone."""
    os.environ.setdefault("OPTVET_CONFINE", str(tmp_path_factory.getbasetemp()))
