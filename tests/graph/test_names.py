from __future__ import annotations

import pytest

import optvet.graph


def test_old_names_of_functions_go_on_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="joined is called join"):
        assert optvet.graph.joined is optvet.graph.join
    with pytest.warns(DeprecationWarning, match="called rename_node_values"):
        assert optvet.graph.renamed is optvet.graph.rename_node_values
    with pytest.raises(AttributeError, match="no attribute 'joinned'"):
        optvet.graph.joinned  # noqa: B018 -- reading it is what is tested
