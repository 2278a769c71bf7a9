"""The page of a profile: what is in the file, and what a browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made_profiles as made
import numpy as np
import pytest

from dla.isa.errors import InputError
from dla.profiler import charts
from dla.profiler.page import LISTED, page, write
from dla.profiler.profile import Ceilings, Profile

Open = Callable[..., Any]


class Elements(HTMLParser):
    """All elements with their attributes, and the texts in them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: dict[str, str] = {}
        self._row: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "tr":
            self._row = dict(attrs).get("id")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._row is not None:
            self.rows[self._row] = f"{self.rows.get(self._row, '')} {data}"


def data_of(text: str) -> dict[str, Any]:
    """The facts that the plots are drawn from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    facts: dict[str, Any] = json.loads(found[1])
    return facts


# -- the file


def test_the_page_needs_no_network() -> None:
    """No element loads anything, and the policy allows only the two scripts whose hashes it has."""
    text = page(made.resnet(20, 8))
    elements = Elements(text).found
    assert [attributes for _, attributes in elements if {"src", "data", "srcset", "action"} & attributes.keys()] == []
    assert {tag for tag, _ in elements} & {"link", "iframe", "object", "img", "base"} == set()
    links = {attributes["href"] for tag, attributes in elements if tag == "a"}
    assert all(link is not None and link.startswith("#") for link in links)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy.endswith("script-src " + " ".join(f"'sha256-{digest}'" for digest in hashes))


def test_hostile_text_stays_text() -> None:
    """Names with tags, quotes, control characters and template fields add no element and no attribute."""
    hostile, tame = Elements(page(made.hostile())), Elements(page(made.chain()))
    assert [tag for tag, _ in hostile.found].count("script") == [tag for tag, _ in tame.found].count("script") == 3
    known = {name for _, attributes in tame.found for name in attributes} | {"class"}
    assert {name for _, attributes in hostile.found for name in attributes} <= known
    assert any("<script>alert(1)</script>" in text for text in hostile.texts)
    assert "\x1b" not in page(made.hostile())
    assert "\u202e" not in page(made.hostile())
    assert "<script>alert" not in page(made.hostile())


def test_the_text_has_times_in_its_margin() -> None:
    """Every instruction has its line, with its time, its share, the native kernel's ratio and where it was written."""
    profile = made.loop()
    rows = Elements(page(profile)).rows
    assert list(rows) == [f"i{index}" for index in range(len(profile.figures))]
    words = rows["i3"].split()
    assert words[:4] == ["3", "15.5", "us", "20.2%"]
    assert {"5", "EW.add", "made.dla:12", "3.05"} <= {word.strip(",") for word in words}
    assert rows["i6"].split()[:2] == ["6", "0"]


def test_long_programs_are_listed_in_part() -> None:
    """Those that take longest, in order; a line says what lies between."""
    body = [f"GEMM {'ab'[i % 2]}, {'ab'[1 - i % 2] if i else 'x'}, w" for i in range(LISTED + 50)]
    profile = made.profile(made.program("many", [*body, "COPY y, a"], 8), range(LISTED + 51), 1)
    elements = Elements(page(profile))
    assert len(elements.rows) == LISTED
    assert f"Of {LISTED + 52:,} instructions, these are the {LISTED:,} that take longest." in " ".join(elements.texts)
    assert any(re.fullmatch(r"\d+ instructions, [\d.]+ .s", text) for text in elements.texts)


def test_every_executed_instruction_is_a_point() -> None:
    """Those without operations, too; nothing that never ran."""
    profile = made.loop()
    points = data_of(page(profile))["points"]
    assert [point["index"] for point in points] == [0, 2, 3, 5]
    assert points[0]["flops"] == 0
    assert points[1]["flops_rate"] == pytest.approx(points[1]["flops"] / points[1]["active"] * 1e6)


def columns(line: dict[str, Any]) -> np.ndarray[Any, Any]:
    """[block, instruction, begin, wait, length] of a timeline's spans."""
    return np.frombuffer(base64.b64decode(line["columns"]), "<u4").reshape(5, line["count"])


def test_the_timeline_has_every_span() -> None:
    """Block, instruction, begin, wait and length."""
    profile = made.resnet(30, 12)
    block, instruction, begin, wait, length = columns(data_of(page(profile))["timeline"])
    spans = profile.trace.spans
    assert block.tolist() == spans["block"].tolist()
    assert instruction.tolist() == spans["instruction"].tolist()
    assert begin.tolist() == spans["began"].tolist()
    assert (begin + length).tolist() == spans["done"].tolist()
    assert wait.tolist() == (spans["ready"] - spans["began"]).clip(0).tolist()


def test_the_timeline_is_in_the_order_of_multiprocessors() -> None:
    """Blocks are dealt out in any order; rows that one multiprocessor has stand beside each other."""
    profile = made.chain(3, 4)
    dealt = replace(profile, trace=replace(profile.trace, multiprocessors=(7, 2, 7, 0)))
    line, was = charts.timeline(dealt), charts.timeline(profile)
    assert line["multiprocessors"] == [0, 2, 7, 7]
    rows = columns(line)
    assert rows[0].tolist() == sorted(rows[0].tolist())
    for row, block in enumerate((3, 1, 0, 2)):
        assert (rows[1:, rows[0] == row] == columns(was)[1:, columns(was)[0] == block]).all()
    assert [(3, 1, 0, 2)[step[2]] for step in line["critical"]] == [step[2] for step in was["critical"]]


def test_many_spans_are_drawn_as_fewer() -> None:
    """Neighbours are one: they cover the same time of each block, and wait as long."""
    profile = made.long(20_000, 4)
    line = charts.timeline(profile)
    assert line["merged"]
    assert line["count"] <= charts.SPANS
    block, instruction, begin, wait, length = columns(line).astype(np.int64)
    spans = profile.trace.spans
    for b in range(4):
        mine, theirs = spans[spans["block"] == b], block == b
        assert begin[theirs][0] == mine["began"][0]
        assert (begin + length)[theirs].max() == mine["done"].max()
        assert wait[theirs].sum() == (mine["ready"] - mine["began"]).clip(0).sum()
    assert (wait <= length).all()
    assert set(instruction.tolist()) <= {0, 2, 3, 5}


def test_runs_of_hours_fit() -> None:
    """Times that 32 bits cannot hold are drawn in a coarser unit."""
    profile = made.chain(3, 2)
    spans = profile.trace.spans.copy()
    for name in ("began", "ready", "loaded", "done", "signalled"):
        spans[name] *= 1_000_000_000
    line = charts.timeline(replace(profile, trace=replace(profile.trace, spans=spans, end=spans["done"].max())))
    _, _, begin, _, length = columns(line).astype(np.int64)
    assert line["unit"] > 1
    assert abs((begin + length) * line["unit"] - spans["done"]).max() <= 2 * line["unit"]


def test_a_page_of_a_resnet_is_small() -> None:
    """200 instructions on 132 multiprocessors stay under 5 MB, and so does a run of a million spans."""
    assert len(page(made.resnet()).encode()) < 5e6
    assert len(page(made.long(50_000, 20)).encode()) < 5e6


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A full disk and a folder that is not there are clear errors."""
    with pytest.raises(InputError, match="No space left on device"):
        write(made.chain(), Path("/dev/full"))
    with pytest.raises(InputError, match="No such file or directory"):
        write(made.chain(), tmp_path / "none" / "page.html")
    write(made.chain(), tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(made.chain())


# -- in a browser


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """`opened(profile, width=..., dark=...)`: its page, of which every message, error and request fails the test."""
    contexts, trouble = [], []

    def open_page(profile: Profile, width: int = 1280, *, dark: bool = False) -> Any:
        write(profile, tmp_path / "page.html")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        found = context.new_page()
        found.on("console", lambda message: trouble.append(message.text))
        found.on("pageerror", lambda error: trouble.append(str(error)))
        found.on("dialog", lambda dialog: trouble.append(dialog.message))
        url = (tmp_path / "page.html").as_uri()
        found.on("request", lambda request: trouble.append(request.url) if request.url != url else None)
        found.goto(url)
        return found

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def inked(found: Any, chart: str) -> int:
    """How many pixels of a plot are drawn."""
    script = """id => { const canvas = document.querySelector(`#${id} canvas`);
      const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let count = 0; for (let i = 3; i < all.length; i += 4) count += all[i] > 0; return count; }"""
    return int(found.evaluate(script, chart))


CHARTS = ("roofline-chart", "natives-chart", "timeline-chart", "memory-chart")


@pytest.mark.parametrize("make", [made.chain, made.loop, made.hostile, made.resnet])
def test_all_plots_are_drawn(opened: Open, make: Callable[[], Profile]) -> None:
    """In a browser without a network, and no name runs."""
    found = opened(make())
    for chart in CHARTS:
        assert inked(found, chart) > 1000
    assert found.evaluate("Number(document.documentElement.dataset.drawn)") > 0


def test_a_resnet_is_drawn_within_two_seconds(opened: Open) -> None:
    """From when the page began: the fastest of three, as other work may hold one up."""
    drawn = "Number(document.documentElement.dataset.drawn)"
    assert min(opened(made.resnet()).evaluate(drawn) for _ in range(3)) < 2000


def test_a_machine_without_ceilings_has_a_page(opened: Open) -> None:
    """Then points stand without lines; numbers that are none are left out."""
    profile = made.chain()
    assert profile.figures[0].native is not None
    odd = replace(
        profile.figures[0], native=replace(profile.figures[0].native, cold=math.nan, warm=None), roof=math.nan
    )
    found = opened(replace(profile, ceilings=Ceilings(math.nan, {"f32": 0.0}), figures=(odd, *profile.figures[1:])))
    assert [inked(found, chart) > 500 for chart in CHARTS] == [True] * 4


@pytest.mark.parametrize("width", [390, 1280])
def test_names_of_roofs_do_not_lie_on_each_other(opened: Open, width: int) -> None:
    """Tensor cores do bf16 and f16 nearly alike, and tf32 at half of that: on seven decades all of them are close."""
    ceilings = Ceilings(4.25e12, {"bf16": 784e12, "f16": 750e12, "tf32": 405e12, "f32": 51e12})
    found = opened(replace(made.chain(), ceilings=ceilings), width)
    script = """() => {
      const chart = echarts.getInstanceByDom(document.getElementById("roofline-chart"));
      return chart.getZr().storage.getDisplayList().filter((one) => one.style.text?.includes("flop/s")).map((one) => {
        const { x, y, width, height } = one.getBoundingRect(), at = one.getComputedTransform() ?? [1, 0, 0, 1, 0, 0];
        return [one.style.text, x + at[4], y + at[5], x + at[4] + width, y + at[5] + height]; }); }"""
    labels = found.evaluate(script)
    assert {label[0] for label in labels} == {"bf16 784 Tflop/s, f16 750 Tflop/s", "tf32 405 Tflop/s", "f32 51 Tflop/s"}
    for i, (_, left, top, right, bottom) in enumerate(labels):
        assert not any(x < right and left < x2 and y < bottom and top < y2 for _, x, y, x2, y2 in labels[i + 1 :])


def test_a_run_without_spans_has_a_page(opened: Open) -> None:
    """It says what there is not."""
    found = opened(made.nothing())
    assert found.inner_text("#roofline-chart") == "Nothing was executed."
    assert found.inner_text("#timeline-chart") == "The trace is empty."
    assert "nothing works" in found.inner_text(".banner >> nth=0")


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
@pytest.mark.parametrize("make", [made.resnet, made.hostile])
def test_a_phone_need_not_scroll_sideways(opened: Open, make: Callable[[], Profile], width: int) -> None:
    """Only wide tables do, inside themselves."""
    found = opened(make(), width)
    assert found.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_follows_the_system(opened: Open) -> None:
    """Paper and plots change with the colour scheme, also while the page is open."""
    found = opened(made.chain(), dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark, ink = found.evaluate(paper), found.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 800})
    found.emulate_media(color_scheme="light")
    found.wait_for_timeout(200)
    assert (dark, found.evaluate(paper)) == ("rgb(15, 20, 25)", "rgb(255, 255, 255)")
    assert found.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 800}) != ink


def test_the_keyboard_reaches_every_instruction(opened: Open) -> None:
    """Arrow keys go from point to point and say what each is; Enter goes to its line of the program."""
    found = opened(made.loop())
    found.focus("#roofline-chart")
    found.keyboard.press("ArrowRight")
    found.keyboard.press("ArrowRight")
    said = found.text_content("#said")
    assert said.startswith("2 GEMM\none call 8.79 us, 5 calls\n62.0% of the run")
    assert found.inner_text("#roofline-chart .tip") == said
    found.keyboard.press("Enter")
    assert found.evaluate("location.hash") == "#i2"
    assert found.evaluate("document.activeElement.textContent") == "2"
    for chart in ("natives-chart", "memory-chart"):
        found.focus(f"#{chart}")
        found.keyboard.press("ArrowDown")
        assert found.text_content("#said") == found.inner_text(f"#{chart} .tip")


def test_the_keyboard_scrolls_wide_tables(opened: Open) -> None:
    """A phone shows the first columns; what has the focus scrolls."""
    found = opened(made.resnet(), 390)
    table = found.get_by_role("group", name="By kind")
    assert table.evaluate("e => e.scrollWidth > e.clientWidth")
    table.focus()
    for _ in range(3):
        found.keyboard.press("ArrowRight")
    found.wait_for_timeout(300)
    assert table.evaluate("e => e.scrollLeft") > 0


def test_columns_without_anything_are_left_out() -> None:
    """A machine of one block has no utilisation to show."""
    assert '<th scope="col">busy</th>' in page(made.loop())
    assert '<th scope="col">busy</th>' not in page(made.loop(blocks=1))


def test_the_timeline_zooms_by_keys_and_buttons(opened: Open) -> None:
    """Halving, moving, and back to all of it; what is in sight is said."""
    found = opened(made.chain())
    found.focus("#timeline-chart")
    plot = found.locator("#timeline-chart")
    pictures = [plot.screenshot()]
    for key, said in (("+", "12.5 us to 37.4 us"), ("ArrowRight", "18.7 us to 43.7 us"), ("+", "25 us to 37.4 us")):
        found.keyboard.press(key)
        found.wait_for_timeout(100)
        assert found.text_content("#said") == said
        pictures.append(plot.screenshot())
    assert len(set(pictures)) == 4
    found.get_by_role("button", name="All").click()
    assert found.text_content("#said") == "0 ns to 49.9 us"


def test_the_pointer_finds_spans(opened: Open) -> None:
    """Over a block that works: which instruction, and how long it took; a double click goes to its line."""
    found = opened(made.chain(6, 8))
    box = found.locator("#timeline-chart canvas")
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    x, y = at["x"] + 60 + (at["width"] - 72) * 0.1, at["y"] + 12 + (at["height"] - 96) * 0.5 / 8
    found.mouse.move(x, y)
    assert (
        found.locator("#timeline-chart .tip >> visible=true")
        .inner_text()
        .startswith("0 GEMM\nmultiprocessor 0, at 0 ns")
    )
    found.mouse.dblclick(x, y)
    assert found.evaluate("location.hash") == "#i0"
