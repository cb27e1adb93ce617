"""For all tests."""

from hypothesis import HealthCheck, settings

# How fast a machine is today says nothing about the code.
settings.register_profile("optvet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("optvet")
