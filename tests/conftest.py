"""For all tests."""

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from optvet.engine.work.sandbox import keep_servers, kept

# Tests start hundreds of processes; each would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Some tests import libraries, or make plugins, without discovering any plugin.
for name, value in {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}.items():
    os.environ.setdefault(name, value)

# How fast a machine is today says nothing about the code. Examples are others in each run.
settings.register_profile(
    "optvet",
    deadline=None,
    max_examples=100 if os.environ.get("OPTVET_ASSAULT") == "long" else 30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("optvet")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two workers a processor, with 4 GB for each: a test waits for processes and for their limits.

    Two workers on two processors left these idle for two fifths of the time.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(processors, min(2 * processors, memory_bytes // (4 << 30)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Look for no garbage among the modules and tests that stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with modules that have long tests: else one of these may run alone at the end."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True, scope="session")
def folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let tasks of tests leave notes there for them: workers write among their own files alone."""
    folder = tmp_path_factory.getbasetemp()
    # jax2onnx compiles for 8 of the 11 seconds of CPU that it takes to load, in each process: all
    # processes of a run share what it compiles.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    (shared / "jax").mkdir(exist_ok=True)
    os.environ.setdefault("OPTVET_CONFINE", f"{folder}{os.pathsep}{shared / 'jax'}")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(shared / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True, scope="session")
def servers_of_tests(folders_of_tests: None) -> Iterator[None]:
    """Let tests that vet in this process start no server that an earlier one can leave to them."""
    keep_servers()
    yield
    assert kept._kept is not None
    kept._kept.close()


@pytest.fixture(scope="module")
def own_servers() -> Iterator[None]:
    """Start and end a server with each sandbox, as every command does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "_kept", None)
        yield
