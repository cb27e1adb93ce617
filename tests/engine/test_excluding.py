"""``--exclude PASS`` works for every optimizer that is installed."""

import pytest

from optvet import UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.pipelines import parse_pipeline
from optvet.spec.extras import given
from optvet.spec.optimizer_protocols import OptimizerExtras

PLUGINS = Plugins()


NAMES = [
    name
    for name in PLUGINS.names("optimizer")
    if not given(PLUGINS.optimizer_without_passes(name), OptimizerExtras.for_model)
]


@pytest.mark.parametrize("name", NAMES)
def test_each_pass_can_be_left_out_but_those_that_the_optimizer_requires(name: str) -> None:
    optimizer = PLUGINS.optimizer(name)
    every = parse_pipeline("default", optimizer)
    required = {p.name for p in optimizer.passes() if p.required}
    for one in set(every):
        if one in required:
            with pytest.raises(UsageError, match=f"{name} cannot do without the pass '{one}'"):
                parse_pipeline("default", optimizer, exclude=[one])
        else:
            left = parse_pipeline("default", optimizer, exclude=[one])
            assert left == tuple(p for p in every if p != one)
    assert set(parse_pipeline("none", optimizer)) == required
