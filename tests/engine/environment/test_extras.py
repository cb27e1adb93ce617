import pytest

from optvet.engine.discovery import Loaded
from optvet.engine.environment.extras import extra_for, missing_extra, wanted_extra

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
    ("problem", "extra"),
    [
        ("ImportError: it needs apache-tvm; install optvet[tvm]", "optvet[tvm]"),
        ("ModuleNotFoundError: No module named 'onnxslim.core'", "optvet[onnxslim]"),
        ("ModuleNotFoundError: No module named 'numpy.f2py'", "optvet[all]"),
        ("ModuleNotFoundError: No module named 'optvet_gone'", None),
        ("ValueError: bad", None),
    ],
)
def test_the_smallest_extra_that_cures_an_import_error_is_named(
    problem: str, extra: str | None
) -> None:
    assert extra_for(problem, requires=requires) == extra


def test_the_extra_is_that_of_the_distribution_the_plugin_came_with() -> None:
    plugin = Loaded(None, "x", "acme_x (acme-boxes 1.0)", problem="No module named 'onnxslim'")
    assert missing_extra(plugin, requires) == "acme-boxes[onnxslim]"


def test_a_plugin_that_works_lacks_nothing() -> None:
    assert missing_extra(Loaded("runtime", "x", "x (optvet 1.0)"), requires) is None


def test_what_a_plugin_can_do_more_with_is_in_the_extras_that_bring_it() -> None:
    plugin = Loaded("dataset", "x", "x (optvet 1.0)", lacks=("onnxslim", "my_lib", "unknown"))
    assert wanted_extra(plugin, requires) == "optvet[lib,onnxslim]"
    assert wanted_extra(Loaded("dataset", "x", "x (optvet 1.0)"), requires) is None
