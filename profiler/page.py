"""A profile as one page for a browser, which needs no network: plots, tables, and the program's text with its times.

Apache ECharts draws the plots; it is in the page. Everything from a program, a library or a device is text: it is
escaped, and the page's policy lets no script run but those two whose hashes it names, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import compress
from pathlib import Path
from string import Template
from typing import Any

from dla.isa.atomic import replacing
from dla.profiler import charts
from dla.profiler.measures import Kind, Measured, kinds, measured, utilisation
from dla.profiler.profile import Profile
from dla.profiler.texts import amount, duration, machine, printable, ratio, share

LISTED = 2_000
"""Instructions in the text and in the plots: those that take longest, where there are more."""
BARS = 40
"""Instructions beside native kernels, those that take longest."""
_ASSETS = Path(__file__).parent / "assets"


def write(profile: Profile, path: Path) -> None:
    """Write the page of `profile` to the file `path`, whole or not at all. Raises InputError."""
    text = page(profile).encode()
    with replacing(path) as (file,):
        file.write(text)


def page(profile: Profile) -> str:
    """The page of `profile`."""
    everything = measured(profile)
    shown = _shown(everything)
    memory = charts.memory(profile)
    data = {
        "points": charts.points(shown),
        "roofs": charts.roofs(profile),
        "bars": BARS,
        "kinds": [printable(kind.name) for kind in kinds(profile) if kind.calls],
        "timeline": charts.timeline(profile),
        "memory": memory,
    }
    name = printable(profile.program.name)
    library, script = _asset("echarts/echarts.min.js"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        hashes=" ".join(map(_hash, (library, script))),
        title=escape(f"{name}: profile"),
        style=_asset("page.css"),
        heading=f"Profile of {escape(name)}",
        banner=_banner(profile),
        tiles=_tiles(profile),
        natives=escape(_about_natives(everything, profile.natives or "the library")),
        timeline=escape(_about_timeline(profile)),
        memory=escape(_about_memory(memory)),
        segments=_segments(profile),
        tables=_kinds(profile) + _wholes(profile),
        about=escape(_about_listing(everything, shown)),
        listing=_listing(profile, everything, shown),
        footer=_footer(profile),
        data=_json(data),
        library=library,
        script=script,
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _json(data: Any) -> str:
    """JSON inside a script element: a `<` could end it."""
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """`value` with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(everything: Sequence[Measured]) -> list[Measured]:
    if len(everything) <= LISTED:
        return list(everything)
    longest = sorted(everything, key=lambda m: (-m.figures.time, m.figures.index))[:LISTED]
    return sorted(longest, key=lambda m: m.figures.index)


# -- what stands above the plots


def _banner(profile: Profile) -> str:
    lines = []
    if profile.trap is not None:
        lines.append(f"The run trapped, so this is of the time before: {printable(profile.trap)}")
    if profile.trace.lost:
        lines.append(f"{profile.trace.lost:,} spans were lost for want of room: the timeline is of the beginning only.")
    return "".join(f'<p class="banner">{escape(line)}</p>' for line in lines)


def _tiles(profile: Profile) -> str:
    flops = sum(f.flops * f.calls for f in profile.figures)
    moved = sum(f.bytes * f.calls for f in profile.figures)
    best = min((w for w in profile.wholes if w.time is not None), key=lambda w: w.time or 0.0, default=None)
    tiles = [
        ("one run", duration(profile.wall)),
        ("machine", f"{machine(profile.machine)}, {printable(profile.device.get('name', ''))}".removesuffix(", ")),
        ("instructions", f"{len(profile.figures):,}"),
        ("executed", f"{sum(f.calls for f in profile.figures):,}"),
    ]
    if profile.wall:
        tiles.append(("operations", amount(flops / profile.wall, "flop/s")))
        tiles.append(("bytes", amount(moved / profile.wall, "B/s")))
        tiles.append(("at the ceilings", f"{duration(profile.roof)}, {share(profile.roof / profile.wall)}"))
    busy = utilisation(profile)
    if busy is not None:
        tiles.append(("multiprocessors work", share(busy)))
    if best is not None and best.time is not None and profile.wall:
        tiles.append((f"{printable(best.name)} / dla", ratio(best.time / profile.wall)))
    tiles += [(printable(name), f"{size}") for name, size in profile.dims.items()]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)


def _about_natives(everything: Iterable[Measured], whose: str) -> str:
    found = [m for m in everything if m.figures.native is not None and m.active is not None]
    if not found:
        return "No instruction was timed beside a native kernel."
    faster = sum((m.of_native or 0) >= 1 for m in found)
    wrong = sum(m.figures.native is not None and not m.figures.native.agrees for m in found)
    text = f"Time of one call: dla in the running program, {whose}'s kernel alone with a cold cache. {faster} of "
    text += f"{len(found)} instructions are at least as fast as theirs."
    if len(found) > BARS:
        text += f" Shown are the {BARS} that take longest."
    return text + (f" {wrong} native results do not agree." if wrong else "")


def _about_timeline(profile: Profile) -> str:
    text = "What each multiprocessor did when; grey is waiting for other instructions. The line is the critical path: "
    text += "what the end of the run waited for."
    if len(profile.trace.spans) > charts.SPANS:
        text += f" Of {len(profile.trace.spans):,} spans, neighbours are drawn as one; a Perfetto trace has all."
    return text


def _about_memory(memory: dict[str, Any]) -> str:
    if not memory["size"]:
        return "The program uses no scratch memory."
    text = f"Scratch memory, {memory['size']:,} bytes: which tensor lies where during which instructions. At most "
    text += f"{memory['most']:,} bytes are in use at once, during instruction {memory['peak']}."
    return text + (f" {memory['left_out']:,} small tensors are left out." if memory["left_out"] else "")


# -- tables


def _table(caption: str, heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already, without columns of empty ones; `heads` says which columns are text."""
    lines = list(rows)
    used = [any(line[i] for line in lines) for i in range(len(heads))]
    heads, lines = list(compress(heads, used)), [list(compress(line, used)) for line in lines]
    kinds = [' class="text"' if text else "" for _, text in heads]
    head = "".join(f'<th scope="col"{k}>{escape(h)}</th>' for k, (h, _) in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{cell}</td>" for k, cell in zip(kinds, line, strict=True)) + "</tr>" for line in lines
    )
    return _scrolling(
        caption,
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
    )


def _scrolling(name: str, table: str) -> str:
    """A table that may be wider than the page: the keyboard scrolls what has the focus."""
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(name)}">{table}</div>'


def _kinds(profile: Profile) -> str:
    heads = [("kind", True), *((head, False) for head in (
        "time", "share", "written", "executed", "mean", "least", "most", "working", "waiting", "busy", "operations",
        "bytes", "flop/s", "B/s", "flop/B", "of roof",
    ))]  # fmt: skip

    def row(k: Kind) -> list[str]:
        m, f = k.sums, k.sums.figures
        return [
            escape(printable(k.name)), duration(f.time), share(m.share), f"{k.written:,}", f"{k.calls:,}",
            *map(duration, f.spent[1:]), duration(f.working), duration(f.waiting), share(m.utilisation),
            amount(f.flops or None, "flop"), amount(f.bytes or None, "B"), amount(m.flops_rate, ""),
            amount(m.bytes_rate, ""), amount(m.intensity, ""), share(m.of_roof),
        ]  # fmt: skip

    return _table("By kind", heads, (row(k) for k in kinds(profile) if k.calls))


def _wholes(profile: Profile) -> str:
    if not profile.wholes:
        return ""
    heads = [("whole program", True), ("time", False), ("native / dla", False), ("first result", False),
             ("result", True), ("note", True)]  # fmt: skip
    rows = [["dla", duration(profile.wall), "", "", "", ""]]
    for whole in profile.wholes:
        against = ratio(whole.time / profile.wall) if whole.time is not None and profile.wall else ""
        verdict = "" if whole.agrees is None else "agrees" if whole.agrees else '<span class="bad">wrong</span>'
        rows.append([escape(printable(whole.name)), duration(whole.time), against, duration(whole.first), verdict,
                     escape(printable(whole.note))])  # fmt: skip
    return _table("The same network elsewhere", heads, rows)


def _segments(profile: Profile) -> str:
    rows = [[escape(printable(name)), f"{size:,}"] for name, size in profile.segments.items()]
    return _table("Memory by segment", [("segment", True), ("bytes", False)], rows)


# -- the program's text


def _about_listing(everything: Sequence[Measured], shown: Sequence[Measured]) -> str:
    text = "In the margin: time on the critical path, its share of the run, one call's time, the share of the roof, "
    text += "and how many times dla is as fast as the native kernel."
    if len(shown) < len(everything):
        text += f" Of {len(everything):,} instructions, these are the {len(shown):,} that take longest."
    return text


_MARGIN = (("", "number"), ("time", "number"), ("share", "number"), ("calls", "more"), ("one call", "more"),
           ("of roof", "more"), ("native / dla", "more"), ("instruction", "text"))  # fmt: skip
"""Heads of the listing's columns, and which of them a phone has no room for."""


def _listing(profile: Profile, everything: Sequence[Measured], shown: Sequence[Measured]) -> str:
    head = "".join(f'<th scope="col" class="{css}">{name}</th>' for name, css in _MARGIN)
    debug = profile.program.debug
    labels: dict[int, list[str]] = {}
    for name, index in debug.labels if debug else ():
        labels.setdefault(index, []).append(name)
    longest = max((m.share or 0.0 for m in shown), default=0.0)
    rows, following, depth = [], 0, 0
    for m in shown:
        index = m.figures.index
        if index > following:
            skipped = everything[following:index]
            time = duration(sum(one.figures.time for one in skipped))
            rows.append(f'<tr class="gap"><td colspan="8">{len(skipped):,} instructions, {time}</td></tr>')
        rows += [_label(name) for name in labels.get(index, ())]
        depth -= m.figures.name == "ENDLOOP"
        rows.append(_line(m, longest, max(depth, 0)))
        depth += m.figures.name == "LOOP"
        following = index + 1
    table = f'<table class="listing"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return _scrolling("The program", table)


def _label(name: str) -> str:
    margin = "<td></td>" * 3 + '<td class="more"></td>' * 4
    return f'<tr class="label">{margin}<td class="code">{escape(printable(name))}:</td></tr>'


def _line(m: Measured, longest: float, depth: int) -> str:
    f = m.figures
    part = 0.0 if not m.share or not longest else m.share / longest
    against = ratio(m.of_native)
    if f.native is not None and not f.native.agrees:
        against = f'<span class="bad">{against} wrong</span>'
    elif m.of_native is not None and m.of_native >= 1:
        against = f'<span class="good">{against}</span>'
    notes = [f.location, f.way, f.native.kernel if f.native else f.why_no_native]
    small = escape(", ".join(printable(note) for note in notes if note))
    code = "    " * (depth + 1) + printable(f.text)
    cells = [
        f'<td><a href="#i{f.index}">{f.index}</a></td>', f"<td>{duration(f.time) if f.calls else ''}</td>",
        f'<td class="share" style="--part:{part:.1%}">{share(m.share) if f.calls else ""}</td>',
        f'<td class="more">{f.calls:,}</td>', f'<td class="more">{duration(m.active)}</td>',
        f'<td class="more">{share(m.of_roof)}</td>', f'<td class="more">{against}</td>',
        f'<td class="code">{escape(code)}  <small>{small}</small></td>',
    ]  # fmt: skip
    return f'<tr id="i{f.index}" class="{"ran" if f.calls else "idle"}">{"".join(cells)}</tr>'


def _footer(profile: Profile) -> str:
    known = [printable(value) if key == "name" else f"{printable(key)} {printable(value)}"
             for key, value in profile.device.items()]  # fmt: skip
    runs = f"the median of {len(profile.runs)} runs" if profile.runs else "not timed"
    text = f"Measured on {', '.join(known) or profile.machine}; {duration(profile.wall)} is {runs}, "
    text += f"{duration(profile.traced)} took the traced one, {duration(profile.overhead)} an empty program. "
    return escape(text + "Plots: Apache ECharts 6.1.0, Apache-2.0.")
