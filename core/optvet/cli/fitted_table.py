"""A table in as many parts as the screen needs, so that no name and no number is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

_SHORTEST_FOLD, _GAP = 16, 2


class FittedTable(Table):
    """A table without lines; where it is too wide, further columns follow below the first ones.

    Numbers and other columns that do not wrap are shown whole; longer words of the others than a
    third of the screen are folded. The first ``keys`` columns stand in every part.
    """

    def __init__(self, keys: int = 1) -> None:
        """Begin a table without columns."""
        super().__init__(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        self.keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the parts one below the other."""
        sizes = [self._sizes(column, console, options) for column in self.columns]
        least = [
            self._least(index, *sizes[index], options.max_width) for index in range(len(sizes))
        ]
        for part in self._parts(least, options.max_width):
            widths = _share(
                options.max_width - _GAP * (len(part) - 1),
                [least[index] for index in part],
                [sizes[index][1] for index in part],
            )
            table = self._of(part, widths, [sizes[index][1] for index in part])
            yield from super(FittedTable, table).__rich_console__(console, options)

    def _parts(self, least: Sequence[int], width: int) -> Iterator[Sequence[int]]:
        keys = list(range(min(self.keys, len(least))))
        part = keys.copy()
        for index in range(len(keys), len(least)):
            used = sum(least[i] + _GAP for i in part) + least[index]
            if used > width and len(part) > len(keys):
                yield part
                part = keys.copy()
            part.append(index)
        yield part

    def _sizes(self, column: Column, console: Console, options: ConsoleOptions) -> tuple[int, int]:
        """The longest word and the longest line of a column."""
        cells = [*([column.header] if self.show_header else []), *column.cells]
        sizes = [Measurement.get(console, options, cell) for cell in cells]
        longest = max((size.minimum for size in sizes), default=0)
        return longest, max((size.maximum for size in sizes), default=0)

    def _least(self, index: int, longest: int, whole: int, width: int) -> int:
        """The width that a column needs at least; names of rows take at most half of a line."""
        column = self.columns[index]
        if column.no_wrap:
            return min(whole, width // 2 if index < self.keys else width)
        return max(min(longest, max(_SHORTEST_FOLD, width // 3)), column.min_width or 0)

    def _of(self, part: Sequence[int], widths: Sequence[int], whole: Sequence[int]) -> FittedTable:
        """A table of some of the columns; what does not fit in its column is folded."""
        table = FittedTable(self.keys)
        table.show_header = self.show_header
        for place, (index, width) in enumerate(zip(part, widths, strict=True)):
            column = self.columns[index]
            no_wrap = column.no_wrap and whole[place] <= width
            table.columns.append(
                replace(column, _index=place, _cells=[], no_wrap=no_wrap, width=width)
            )
        for row in zip(*(self.columns[index].cells for index in part), strict=True):
            table.add_row(*row)
        return table


def _share(width: int, least: Sequence[int], whole: Sequence[int]) -> list[int]:
    """Widths from ``least`` to ``whole``; what is left goes to the narrowest that needs more."""
    widths = list(least)
    for _ in range(width - sum(least)):
        wanting = [i for i, now in enumerate(widths) if now < whole[i]]
        if not wanting:
            break
        widths[min(wanting, key=widths.__getitem__)] += 1
    return widths
