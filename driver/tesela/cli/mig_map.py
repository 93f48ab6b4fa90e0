"""The MIG map: what every GPU of a node is cut into and who holds which piece, as lines of text with colours.

Drawing only: plain data in, lines out, no state is read here. One column group is one memory slice, because memory
slices are what placements name (nvmlGpuInstancePlacement_t). Without colours the edges, dots and words say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from rich.text import Text

from tesela.core.model import Placement

MAX_WIDTH: Final = 100
LABEL_WIDTH: Final = 25
NARROW_LABEL_WIDTH: Final = 8
MIN_SLICE_WIDTH: Final = 4
_GRID_WIDTHS: Final = 24
"""4, 8 and 12 slices all divide it, so that GPUs of different models line up."""

WHOLE: Final = "whole GPU"
NO_CLAIM: Final = "no claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paint:
    """Colours of a block: the edge is a shade of the ground, so that neighbours part."""

    ink: str
    ground: str
    shade: str

    @property
    def body(self) -> str:
        return f"{self.ink} on {self.ground}"

    @property
    def edge(self) -> str:
        return f"{self.shade} on {self.ground}"


_WHOLE_PAINT: Final = _Paint(ink="#101418", ground="#d7dde5", shade="#8a94a2")
_FOREIGN_PAINT: Final = _Paint(ink="#ffffff", ground="#c5303a", shade="#7c1018")
_PAINTS: Final = {
    "1g": _Paint(ink="#10200a", ground="#86c232", shade="#4d7a12"),
    "2g": _Paint(ink="#04201f", ground="#35b8a6", shade="#157264"),
    "3g": _Paint(ink="#06182e", ground="#5aa2f0", shade="#2463ab"),
    "4g": _Paint(ink="#180a30", ground="#a98bf0", shade="#6844b8"),
    "7g": _Paint(ink="#2a1800", ground="#f0a83c", shade="#a8690c"),
}
_OTHER_PAINT: Final = _Paint(ink="#201010", ground="#e08fb0", shade="#9c4a6c")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBlock:
    """One GPU instance. `holder` is who uses it, None for one that no claim of ours holds."""

    placement: Placement
    profile: str
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One GPU. `whole_holder` is who holds all of it; then `blocks` is empty. `remark` is an oddity such as LOST."""

    name: str
    product_name: str
    mig: str
    memory_slices: int
    blocks: tuple[MapBlock, ...] = ()
    whole_holder: str | None = None
    remark: str = ""

    @property
    def free_slices(self) -> int:
        """Memory slices that somebody could be given; none on a GPU with a remark."""
        if self.whole_holder is not None or self.remark:
            return 0
        return self.memory_slices - len(self.used_slices)

    @property
    def used_slices(self) -> frozenset[int]:
        """Memory slices that a GPU instance covers."""
        return frozenset(slot for block in self.blocks for slot in block.placement.slices)


class Detail(StrEnum):
    """FULL names holders on a line of their own; COMPACT spends one line on a GPU, for low terminals."""

    FULL = "full"
    COMPACT = "compact"


def render_mig_map(
    rows: Sequence[MapRow], *, width: int = MAX_WIDTH, detail: Detail = Detail.FULL, ascii_only: bool = False
) -> Text:
    """The map of `rows`, GPU by GPU, with a ruler over each run of equal models and a legend below.

    At most `width` columns (and never more than 100). `ascii_only` avoids characters that a plain terminal lacks.
    """
    pen = _Pen.for_grids({row.memory_slices for row in rows}, min(width, MAX_WIDTH), ascii_only=ascii_only)
    lines: list[Text] = []
    for (product_name, memory_slices), group in groupby(rows, key=lambda row: (row.product_name, row.memory_slices)):
        members = tuple(group)
        if lines and lines[-1]:
            lines.append(Text())
        lines.append(_line(pen.heading(product_name, len(members))))
        lines.append(_line(pen.ruler(memory_slices)))
        for row in members:
            lines.extend(_line(parts) for parts in _row_lines(row, pen, detail))
    if lines and lines[-1]:
        lines.append(Text())
    lines.extend(_line(parts) for parts in _legend(rows, pen, min(width, MAX_WIDTH)))
    return Text("\n").join(lines)


_Part = tuple[str, str]
_PLAIN: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pen:
    """Widths and characters of one drawing."""

    label_width: int
    grid_width: int
    edge: str
    dot: str
    ellipsis: str

    @classmethod
    def for_grids(cls, grids: Iterable[int], width: int, *, ascii_only: bool) -> _Pen:
        largest = max(grids, default=1)
        # Where the words beside a name would cost the grid its even columns, they go.
        label_width = LABEL_WIDTH if width - LABEL_WIDTH >= 3 * _GRID_WIDTHS else NARROW_LABEL_WIDTH
        room = max(width - label_width, MIN_SLICE_WIDTH * largest)
        # Rounded down to what all known grids divide; a grid of another size or a narrow screen gets its own multiple.
        unit = _GRID_WIDTHS if room >= _GRID_WIDTHS * 2 and _GRID_WIDTHS % largest == 0 else largest
        edge, dot, ellipsis = ("|", ".", "~") if ascii_only else ("▌", "·", "…")
        return cls(
            label_width=label_width,
            grid_width=room // unit * unit,
            edge=edge,
            dot=dot,
            ellipsis=ellipsis,
        )

    def slice_width(self, memory_slices: int) -> int:
        return max(self.grid_width // max(memory_slices, 1), 1)

    def heading(self, product_name: str, count: int) -> list[_Part]:
        times = f"{count} x " if count > 1 else ""
        return [(f"{times}{product_name}", "bold")]

    def ruler(self, memory_slices: int) -> list[_Part]:
        width = self.slice_width(memory_slices)
        title = "  memory slice" if self.label_width == LABEL_WIDTH else "slice"
        parts = [*_indented(title, "dim"), (" " * (self.label_width - len(title) + 1), "")]
        for slot in range(memory_slices):
            parts += [(str(slot), "dim"), (" " * (width - len(str(slot))), "")]
        return parts

    def fit(self, text: str, width: int) -> str:
        """`text` padded or cut to `width`."""
        return text.ljust(width) if len(text) <= width else text[: width - 1] + self.ellipsis

    def fit_profile(self, profile: str, width: int) -> str:
        """Like `fit`; a long name loses its memory first, since `+me` tells two profiles apart."""
        if len(profile) <= width:
            return profile.ljust(width)
        head, _, tail = profile.partition(".")
        return self.fit(f"{head}{self.ellipsis}{tail.partition('gb')[2]}", width)

    def box(self, text: str, paint: _Paint, weight: str = "") -> list[_Part]:
        """A piece of a block: edge, text, and one empty column as the gap to its neighbour."""
        return [(self.edge, paint.edge), (text, f"{weight} {paint.body}".strip()), (" ", "")]


def _row_lines(row: MapRow, pen: _Pen, detail: Detail) -> Iterator[list[_Part]]:
    blocks = _blocks(row)
    yield [*_label(row, pen), *_cells(row, blocks, pen, named=detail is Detail.COMPACT)]
    if detail is Detail.FULL and blocks:
        yield [(" " * pen.label_width, ""), *_cells(row, blocks, pen, holders=True)]
        yield []


def _label(row: MapRow, pen: _Pen) -> list[_Part]:
    weight = "bold red" if row.remark else "bold"
    if pen.label_width == NARROW_LABEL_WIDTH:
        return [(pen.fit(row.name, pen.label_width - 1), weight), (" ", "")]
    if row.remark:
        return _indented(f"  {row.name:<{pen.label_width - 2}}", weight)
    free = pen.fit(f"{row.free_slices:>2} free ", pen.label_width - 17)
    return [*_indented(f"  {row.name:<7}", weight), (f"MIG {row.mig}".ljust(8), _PLAIN), (free, "dim")]


def _blocks(row: MapRow) -> tuple[MapBlock, ...]:
    if row.remark:
        return ()
    if row.whole_holder is not None:
        everything = Placement(start=0, size=row.memory_slices)
        return (MapBlock(placement=everything, profile=WHOLE, holder=row.whole_holder),)
    return tuple(sorted(row.blocks, key=lambda block: block.placement))


def _cells(
    row: MapRow, blocks: Sequence[MapBlock], pen: _Pen, *, holders: bool = False, named: bool = False
) -> Iterator[_Part]:
    slice_width = pen.slice_width(row.memory_slices)
    if row.remark:
        yield pen.fit(row.remark, slice_width * row.memory_slices - 1), "red"
        return
    slot = 0
    for block in blocks:
        yield from _free(block.placement.start - slot, slice_width, pen)
        yield from _piece(block, slice_width, pen, holders=holders, named=named)
        slot = block.placement.start + block.placement.size
    yield from _free(row.memory_slices - slot, slice_width, pen)


def _free(count: int, slice_width: int, pen: _Pen) -> Iterator[_Part]:
    for _ in range(count):
        yield pen.dot * (slice_width - 1) + " ", "dim"


def _piece(block: MapBlock, slice_width: int, pen: _Pen, *, holders: bool, named: bool) -> list[_Part]:
    room = block.placement.size * slice_width - 2
    holder = block.holder if block.holder is not None else NO_CLAIM
    if holders:
        return pen.box(pen.fit(holder, room), _paint(block))
    text = pen.fit_profile(block.profile, room)
    both = f"{block.profile} {holder}"
    if named and room > len(block.profile) + MIN_SLICE_WIDTH:
        text = pen.fit(both, room)
    return pen.box(text, _paint(block), "bold")


def _paint(block: MapBlock) -> _Paint:
    if block.holder is None:
        return _FOREIGN_PAINT
    if block.profile == WHOLE:
        return _WHOLE_PAINT
    return _PAINTS.get(block.profile.partition(".")[0], _OTHER_PAINT)


def _legend(rows: Sequence[MapRow], pen: _Pen, width: int) -> list[list[_Part]]:
    kinds = {}
    for row in rows:
        for block in _blocks(row):
            kinds[NO_CLAIM if block.holder is None else block.profile.partition(".")[0]] = _paint(block)
    swatches: list[_Part] = [("  ", "")]
    for word in sorted(kinds):
        swatches += [*pen.box(f"{word} ", kinds[word]), (" ", "")]
    free = sum(row.free_slices for row in rows)
    total = sum(row.memory_slices for row in rows)
    rest = [(f"{pen.dot * 3} free", "dim"), ("   ", ""), (f"{free} of {total} memory slices are free", _PLAIN)]
    if sum(len(text) for text, _ in (*swatches, *rest)) <= width:
        return [[*swatches, *rest]]
    return [swatches, [("  ", ""), *rest]]


def _indented(text: str, style: str) -> list[_Part]:
    """`text` with its leading blanks apart: programs that show SVG strip them from styled text."""
    body = text.lstrip()
    return [(" " * (len(text) - len(body)), ""), (body, style)]


def _line(parts: Iterable[_Part]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="")
