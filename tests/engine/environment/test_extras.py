import pickle

import pytest

from optvet.engine.environment.extras import extra_for, missing_extra, wanted_extra
from optvet.engine.plugin_entries import Loaded
from optvet.spec.errors import MissingLibrary, PluginError, absence_of

REQUIRES = [
    "numpy>=1",
    'onnxslim>=0.1; extra == "onnxslim"',
    'onnxslim>=0.1; extra == "all"',
    'numpy>=1; extra == "all"',
    'my.lib; python_version > "3" and extra == "lib"',
]


def requires(name: str) -> list[str]:
    assert name in ("optvet", "acme-boxes")
    return REQUIRES


@pytest.mark.parametrize(
    ("absent", "extra"),
    [
        (MissingLibrary("apache-tvm", "optvet[tvm]"), "optvet[tvm]"),
        (ModuleNotFoundError(name="onnxslim.core"), "optvet[onnxslim]"),
        (ModuleNotFoundError(name="numpy.f2py"), "optvet[all]"),
        (ModuleNotFoundError(name="optvet_gone"), None),
        (ModuleNotFoundError("bad"), None),
    ],
)
def test_the_smallest_extra_that_cures_an_import_error_is_named(
    absent: ModuleNotFoundError | MissingLibrary, extra: str | None
) -> None:
    assert extra_for(absent, requires=requires) == extra


def test_the_extra_is_that_of_the_distribution_the_plugin_came_with() -> None:
    absent = ModuleNotFoundError(name="onnxslim")
    plugin = Loaded(None, "x", "acme_x", absent=absent, distribution="acme-boxes")
    assert missing_extra(plugin, requires) == "acme-boxes[onnxslim]"


def test_a_plugin_that_works_lacks_nothing() -> None:
    assert missing_extra(Loaded("runtime", "x", "x (optvet 1.0)"), requires) is None


def test_what_a_plugin_can_do_more_with_is_in_the_extras_that_bring_it() -> None:
    plugin = Loaded("dataset", "x", "x (optvet 1.0)", lacks=("onnxslim", "my_lib", "unknown"))
    assert wanted_extra(plugin, requires) == "optvet[lib,onnxslim]"
    assert wanted_extra(Loaded("dataset", "x", "x (optvet 1.0)"), requires) is None


def test_what_is_absent_is_known_through_wrapped_errors_and_processes() -> None:
    missing = MissingLibrary("jiwer", "optvet[speech]", who="comparator 'speech'")
    wrapped = PluginError("comparator 'speech' cannot be used")
    wrapped.__cause__ = missing
    assert absence_of(wrapped) is missing
    assert absence_of(PluginError("No module named 'jiwer'")) is None
    copied = pickle.loads(pickle.dumps(missing))
    assert (str(copied), copied.extra) == (
        "comparator 'speech' needs jiwer; install optvet[speech]",
        "optvet[speech]",
    )
