import io

import pytest
from rich.console import Console

from optvet.cli.render import table_of

NUMBERS = ("2.8e-08", "0.00012", "1.0000")
NAME = "model/batch_normalization/FusedBatchNormV3"


def drawn(width: int, name: str = "BatchNormalization") -> list[str]:
    table = table_of(("operator", ""), ("where", ""))
    for header in ("error", "noise", "cosine"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_row(name, NAME, *NUMBERS)
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_name_and_no_number_is_cut(width: int) -> None:
    lines = drawn(width)
    assert all(len(line) <= width for line in lines)
    words = " ".join(lines).split()
    assert {"BatchNormalization", *NUMBERS} <= set(words)
    assert not any("…" in line for line in lines)


def test_a_wide_screen_has_one_part_and_a_narrow_one_repeats_the_names_of_rows() -> None:
    assert " ".join(drawn(200)).count("BatchNormalization") == 1
    assert " ".join(drawn(40)).count("BatchNormalization") == 3


def test_a_name_that_takes_more_than_half_of_a_line_is_folded() -> None:
    lines = drawn(40, name="x" * 60)
    assert all(len(line) <= 40 for line in lines)
    assert "".join(lines).count("x") == 3 * 60
