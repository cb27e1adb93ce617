from __future__ import annotations

import numpy as np
import pytest

from optvet import InputError
from optvet.plugin import readable_outputs

OUTPUTS = {"label": np.array(3), "map": np.zeros((1, 4)), "mask": np.zeros((2, 4))}


def flat(name: str, value: np.ndarray) -> bool:
    return value.ndim == 2


@pytest.mark.parametrize(("wanted", "names"), [("", ["map", "mask"]), ("mask", ["mask"])])
def test_the_wanted_output_is_read_or_all_that_fit(wanted: str, names: list[str]) -> None:
    assert readable_outputs("flat", OUTPUTS, wanted, flat, "with rows") == names


@pytest.mark.parametrize("wanted", ["label", "absent"])
def test_an_output_that_cannot_be_read_is_refused_by_name(wanted: str) -> None:
    words = f"'flat': no output '{wanted}' of rank 2 among 'label', 'map', 'mask'; choose one"
    with pytest.raises(InputError, match=words):
        readable_outputs("flat", OUTPUTS, wanted, flat, "with rows", of="of rank 2")


def test_without_a_readable_output_the_message_says_what_it_has_to_hold() -> None:
    with pytest.raises(InputError, match="no output 'with rows' among 'label'; choose one with"):
        readable_outputs("flat", {"label": OUTPUTS["label"]}, "", flat, "with rows")
