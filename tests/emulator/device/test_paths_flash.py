"""ATTENTION of 16-bit floats: which instructions wgmma takes, where keys are split, and that the results are right."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.layout import FLASH_F16, FLASH_HALVES, FLASH_WIDE, PATH_FLASH, PATH_GENERIC
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Context, Schedule, Target, flash, schedule
from dla.emulator.result import Result
from dla.isa.descriptor import Segment
from dla.isa.program import Program
from dla.isa.reach import Reach
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare

ROWS_HELD = 4
"""The way of tiles of 16 rows in kernel/attention_few.cuh."""
BASES = {segment: segment.value << 40 for segment in Segment}


def attention(attributes: str = "", **tensors: str) -> Program:
    """One ATTENTION over tensors of the given types; q, k, v are inputs, the rest outputs unless `mask`."""
    segments = {"q": "input", "k": "input", "v": "input", "mask": "input"}
    declared = "\n".join(f".{segments.get(name, 'output')} {name} : {text}" for name, text in tensors.items())
    optional = " ".join(f"{name}={name}" for name in ("mask", "lse") if name in tensors)
    return assemble(f".program a\n{declared}\nmain:\n    ATTENTION y, q, k, v {optional} {attributes}\n    HALT\n")


def scheduled(program: Program, *, hopper: bool = True) -> tuple[Schedule, Context]:
    """The schedule of the first instruction, and the context with its tables."""
    context = Context(Target(132, hopper=hopper), BASES, Reach(program))
    return schedule(program.instructions[0], context), context


def same(dtype: str, *dims: object) -> dict[str, str]:
    """y, q, k and v of one shape."""
    return {name: f"{dtype}[{', '.join(map(str, dims))}]" for name in "yqkv"}


def kv(
    dtype: str, batch: object, heads: int, key_heads: int, queries: object, keys: object, depth: int, width: int = 0
) -> dict[str, str]:
    """Types of q, k, v, y and lse."""
    width = width or depth
    return {
        "y": f"{dtype}[{batch}, {heads}, {queries}, {width}]", "q": f"{dtype}[{batch}, {heads}, {queries}, {depth}]",
        "k": f"{dtype}[{batch}, {key_heads}, {keys}, {depth}]", "v": f"{dtype}[{batch}, {key_heads}, {keys}, {width}]",
        "lse": f"f32[{batch}, {heads}, {queries}]",
    }  # fmt: skip


# ---- the plan ----


@pytest.mark.parametrize(
    ("dtype", "depth", "flags"),
    [("bf16", 64, 0), ("f16", 40, FLASH_F16), ("bf16", 128, FLASH_WIDE), ("f16", 96, FLASH_WIDE | FLASH_F16)],
)
def test_16_bit_floats_go_to_wgmma(dtype, depth, flags):
    """The flags say the type, and whether more than 64 columns are needed; a map for each of q, k, v."""
    found, context = scheduled(attention(**same(dtype, 2, 4, 200, depth)))
    assert found.path == PATH_FLASH
    assert found.detail[3] == flags | FLASH_HALVES
    maps = list(context.maps)
    assert [m.dims for m in maps] == [(depth, 200, 4, 2, 1)] * 3
    assert all(m.strides[:3] == (depth * 2, depth * 400, depth * 1600) for m in maps)


@pytest.mark.parametrize(
    ("heads", "queries", "halves"),
    [(12, 192, True), (66, 128, True), (67, 128, False), (12, 704, True), (12, 705, False)],
)
def test_few_tiles_are_of_one_warpgroup(heads, queries, halves):
    """Tiles of half as many queries, as long as there is a block for each."""
    found, _ = scheduled(attention("causal", **same("bf16", 1, heads, queries, 64)))
    assert bool(found.detail[3] & FLASH_HALVES) is halves
    assert found.tiles == heads * -(-queries // (64 if halves else 128))


@pytest.mark.parametrize(
    "program",
    [
        attention(**same("f32", 1, 2, 200, 64)),
        attention(**same("bf16", 1, 2, 200, 136)),
        attention(**same("bf16", 1, 2, 200, 36)),
        attention(**same("bf16", 1, 2, 16, 64)),
        attention("scale=-1", **same("bf16", 1, 2, 200, 64)),
        attention(**same("bf16", 1, 2, 200, 64), mask="bool[200, 200]"),
        attention(**(same("bf16", 1, 2, 200, 64) | {"y": "f32[1, 2, 200, 64]"})),
    ],
    ids=["f32", "wide", "unaligned", "few", "negative", "mask", "out"],
)
def test_what_does_not_fit_goes_to_the_handler(program):
    """Other types, more columns, rows that no tensor map describes, few queries, mask tensors."""
    assert scheduled(program)[0].path == PATH_GENERIC


@pytest.mark.parametrize(
    ("types", "tiles"),
    [
        (kv("bf16", 1, 12, 12, 128, 128, 64), 96),
        (kv("f16", 1, 12, 12, 128, 128, 32), 96),
        (kv("bf16", 1, 12, 12, 128, 129, 64), None),
        (kv("bf16", 1, 12, 12, 128, 64, 128), 96),
        (kv("bf16", 1, 12, 12, 128, 65, 128), None),
        (kv("bf16", 1, 12, 12, 128, 128, 96), None),
        (kv("bf16", 1, 12, 2, 44, 100, 64), 34),  # 6 heads of 44 queries are 264 rows
        (kv("bf16", 1, 16, 16, 128, 128, 64), 128),
        (kv("bf16", 1, 17, 17, 128, 128, 64), None),
    ],
)
def test_tiles_of_16_rows_where_there_are_blocks_for_all(types, tiles):
    """And all keys fit the registers of a block's warps; rows are those of all heads that share keys."""
    found, _ = scheduled(attention("causal", **types))
    if tiles is None:
        assert found.path == PATH_FLASH
    else:
        assert (found.path, found.tiles, "16 rows" in found.summary) == (PATH_GENERIC, tiles, True)


@pytest.mark.parametrize(
    ("attributes", "more"),
    [("softcap=2", {}), ("", {"mask": "bool[64, 64]"}), ("", {"y": "f32[1, 2, 64, 64]"})],
    ids=["softcap", "mask", "out"],
)
def test_what_tiles_of_16_rows_do_not_take(attributes, more):
    """With the soft cap it goes to wgmma, else to the handler, whose other tiles take all."""
    found, _ = scheduled(attention(attributes, **(same("bf16", 1, 2, 64, 64) | more)))
    assert found.path == (PATH_FLASH if attributes else PATH_GENERIC)
    assert "16 rows" not in found.summary


def test_other_gpus_have_no_wgmma():
    """A target without Hopper's paths gets the handler."""
    assert scheduled(attention(**same("bf16", 1, 2, 200, 64)), hopper=False)[0].path == PATH_GENERIC


def test_heads_within_rows_are_views():
    """[batch, length, heads, depth] storage seen as [batch, heads, length, depth]: strides follow the view."""
    program = assemble("""
.input x : bf16[2, 200, 3, 4, 64]
.output y : bf16[2, 200, 4, 64]
main:
    ATTENTION y.permute(0, 2, 1, 3), x[:, :, 0].permute(0, 2, 1, 3),
              x[:, :, 1].permute(0, 2, 1, 3), x[:, :, 2].permute(0, 2, 1, 3)
    HALT
""")
    found, context = scheduled(program)
    assert found.path == PATH_FLASH
    maps = list(context.maps)
    assert [m.address - BASES[Segment.INPUT] for m in maps] == [0, 512, 1024]
    assert all(m.strides[:3] == (3 * 512, 128, 200 * 3 * 512) for m in maps)


@pytest.mark.parametrize(
    ("queries", "keys", "splits"), [(1, 512, True), (16, 512, True), (1, 64, False), (17, 512, False)]
)
@pytest.mark.parametrize("hopper", [False, True])
def test_few_queries_get_room_for_partial_results(queries, keys, splits, hopper):
    """Where keys may be split over blocks, the detail names the number of partial results and where they are."""
    q, k = f"bf16[1, 8, {queries}, 64]", f"bf16[1, 2, {keys}, 64]"
    found, context = scheduled(attention(y=q, q=q, k=k, v=k), hopper=hopper)
    assert (context.workspace_bytes > 132 * 16 * 128 * 4) is splits
    assert found.detail[:1] == ((132,) if splits else found.detail[:1])
    assert (found.path == PATH_GENERIC) is (queries <= 16 or not hopper)


# ---- the machine ----


def tensors(program: Program, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random numbers for the inputs; `sizes` of their dynamic dims, by name."""
    given = {}
    for t in program.in_segment(Segment.INPUT):
        names = {s.register: s.name for s in program.dims}
        shape = tuple(sizes[names[d.register]] if hasattr(d, "register") else d for d in t.descriptor.dims)
        drawn = rng.normal(size=shape) if t.descriptor.dtype.is_float else rng.integers(0, 2, shape)
        given[t.name] = drawn.astype(t.descriptor.dtype.numpy)
    return given


CASES = {
    "one tile": ("", kv("bf16", 1, 2, 2, 128, 128, 64), {}),
    "halves": ("causal window=300", kv("bf16", 1, 2, 1, 128, 500, 128), {}),
    "half a tile": ("", kv("f16", 2, 2, 2, 50, 300, 64), {}),
    "blocks": ("", kv("bf16", 2, 3, 3, 300, 517, 64), {}),
    "wide": ("", kv("bf16", 2, 3, 3, 300, 517, 128), {}),
    "half": ("causal", kv("f16", 1, 4, 2, 333, 333, 64), {}),
    "wide half": ("causal", kv("f16", 1, 4, 2, 333, 333, 128), {}),
    "causal": ("causal", kv("bf16", 2, 6, 2, 700, 700, 64), {}),
    "wide causal": ("causal", kv("bf16", 2, 6, 2, 700, 700, 128), {}),
    "many": ("causal", kv("bf16", 4, 32, 8, 200, 200, 64), {}),
    "paired": ("causal", kv("bf16", 4, 32, 32, 300, 640, 128), {}),
    "columns": ("", kv("bf16", 1, 2, 2, 200, 200, 40, 72), {}),
    "window": ("causal window=100", kv("bf16", 1, 4, 1, 500, 500, 128), {}),
    "window only": ("window=50", kv("bf16", 1, 4, 1, 300, 300, 64), {}),
    "softcap": ("softcap=2 scale=0.3", kv("bf16", 1, 2, 2, 260, 260, 64), {}),
    "wide softcap": ("softcap=2 causal", kv("bf16", 1, 2, 2, 260, 260, 128), {}),
    "steep": ("scale=3", kv("bf16", 1, 2, 1, 130, 600, 64), {}),
    "wide steep": ("scale=2 causal", kv("f16", 1, 2, 1, 300, 500, 128), {}),
    "more queries": ("causal", kv("bf16", 1, 2, 2, 400, 150, 64), {}),
    "ahead": ("causal position=-200", kv("bf16", 1, 2, 2, 300, 300, 128), {}),
    "dynamic": ("causal", kv("bf16", "b <= 3", 4, 2, "s <= 400", "t <= 900", 64), {"b": 2, "s": 177, "t": 411}),
    "wide dynamic": ("", kv("bf16", "b <= 3", 4, 2, "s <= 400", "t <= 900", 128), {"b": 1, "s": 129, "t": 130}),
    "a token": ("causal", kv("bf16", 1, 32, 8, 1, 700, 64), {}),
    "a wide token": ("causal", kv("bf16", 1, 32, 8, 1, 700, 128), {}),
    "half a token": ("", kv("f16", 2, 8, 1, 1, 333, 128), {}),
    "tokens": ("causal", kv("bf16", 1, 32, 8, 16, 1000, 64), {}),
    "five tokens": ("causal window=300", kv("bf16", 2, 12, 4, 5, 1000, 128), {}),
    "token softcap": ("softcap=3", kv("bf16", 1, 4, 4, 3, 513, 96), {}),
    "deep token": ("", kv("bf16", 1, 4, 4, 1, 600, 256, 200), {}),
    "a token of a cache": ("causal", kv("bf16", "b <= 2", 8, 2, "s <= 8", "t <= 3000", 64),
                           {"b": 2, "s": 3, "t": 2099}),
    "rows beyond a tile": ("causal window=90", kv("f16", 1, 8, 2, 9, 200, 64), {}),
    "one split": ("position=20 causal", kv("bf16", 2, 4, 2, 3, 100, 64), {}),
    "no key": ("causal position=-2", kv("bf16", 1, 4, 2, 4, 300, 64), {}),
    "many keys": ("", kv("bf16", 1, 8, 2, 1, 1300, 64), {}),
    "many keys of a wide token": ("causal position=1100", kv("f16", 1, 3, 1, 1, 1201, 128), {}),
    "many keys of tokens": ("causal window=700", kv("bf16", 2, 4, 1, 9, 1201, 64), {}),
    "more keys of tokens": ("causal window=1100", kv("bf16", 2, 4, 1, 3, 1201, 64), {}),
    "a narrow token": ("causal", kv("bf16", 1, 8, 2, 1, 500, 32), {}),
    "rows": ("causal", kv("bf16", 1, 1, 1, 50, 90, 64), {}),
    "narrow rows": ("", kv("f16", 1, 2, 2, 30, 100, 32), {}),
    "wide rows": ("causal window=20", kv("bf16", 1, 2, 1, 25, 61, 128), {}),
    "few keys": ("", kv("bf16", 2, 1, 1, 20, 7, 64), {}),
    "dynamic rows": ("causal", kv("bf16", "b <= 2", 2, 1, "s <= 32", "t <= 64", 128), {"b": 1, "s": 19, "t": 33}),
    "narrow rows ahead": ("causal position=-9", kv("bf16", 1, 1, 1, 64, 40, 32), {}),
    "masked token": ("", kv("bf16", 1, 8, 2, 2, 400, 64) | {"mask": "bool[2, 400]"}, {}),
}  # fmt: skip


SMALL = (
    "one tile", "halves", "half a tile", "half", "wide half", "steep", "wide steep", "more queries", "half a token",
    "token softcap", "masked token", "five tokens", "rows beyond a tile", "one split", "no key",
    "many keys", "many keys of a wide token", "many keys of tokens", "more keys of tokens", "a narrow token", "rows",
    "narrow rows", "wide rows", "few keys", "narrow rows ahead",
)  # fmt: skip
IN_ROWS = ("rows", "narrow rows", "wide rows", "few keys", "narrow rows ahead")
"""Those of tiles of 16 rows on the emulated device."""


@cpu_machine.needs_compiler
@pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
@pytest.mark.parametrize("name", SMALL)
def test_results_on_the_emulated_device(name, hopper):
    """Without a GPU: small cases with static shapes, whatever order warps and copies come in."""
    attributes, types, sizes = CASES[name]
    program = attention(attributes, **types)
    given = tensors(program, sizes, np.random.default_rng(7))
    session = CpuSession(program, hopper=hopper, seed=1)
    outputs = session.run(given).outputs
    result = Result(outputs, {}, {}, "cpu", 0.0)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    assert (("ATTENTION", ROWS_HELD) in session.ways()) is (name in IN_ROWS)


@cpu_machine.needs_compiler
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("depth", "keys"), [(64, 1301), (128, 600)])
def test_lines_of_many_keys_may_be_apart(depth, keys, checked):
    """Each is a copy of its own then; in whatever order these come, results have the same bits."""
    program = assemble(f"""
.input q : bf16[1, 4, 1, {depth}]
.input k : bf16[1, {keys}, 2, {depth}]
.input v : bf16[1, 2, {keys}, {depth}]
.output y : bf16[1, 4, 1, {depth}]
main:
    ATTENTION y, q, k.permute(0, 2, 1, 3), v
    HALT
""")
    given = tensors(program, {}, np.random.default_rng(11))
    outputs = [CpuSession(program, hopper=True, checked=checked, seed=seed).run(given).outputs for seed in range(2)]
    assert [c for c in compare(program, given, Result(outputs[0], {}, {}, "cpu", 0.0)) if not c.ok] == []
    assert outputs[0]["y"].tobytes() == outputs[1]["y"].tobytes()


@cpu_machine.needs_compiler
@pytest.mark.parametrize(
    ("queries", "heads", "cached"), [(500, 5, 0), (600, 5, 0), (600, 5, 2), (300, 5, 1), (600, 4, 1), (300, 3, 2)]
)
def test_tiles_in_pairs_and_the_rest_are_all_tiles(monkeypatch, queries, heads, cached):
    """Where keys do not fit in the cache, tiles of the first heads go in pairs; the last round of these is not full."""
    program = attention("causal position=0", **kv("bf16", 1, heads, heads, queries, 20, 64))
    monkeypatch.setattr(flash, "CACHED_BYTES", cached * 20 * 128 * 2)
    session = CpuSession(program, hopper=True, seed=2)
    assert session.plan.schedules[0].detail[4] == heads - max(1, cached)
    given = tensors(program, {}, np.random.default_rng(9))
    result = Result(session.run(given).outputs, {}, {}, "cpu", 0.0)
    assert [c for c in compare(program, given, result) if not c.ok] == []


CHAIN = """
.input q : bf16[1, 2, 100, 64]
.input k : bf16[1, 2, 200, 64]
.input v : bf16[1, 2, 200, 64]
.scratch a : bf16[1, 2, 100, 64]
.scratch b : bf16[1, 2, 100, 64]
.output y : bf16[1, 2, 100, 64]
main:
    ATTENTION a, q, k, v causal
    ATTENTION b, a, k, v
    ATTENTION a, b, v, k causal
    ATTENTION y, a, k, v
    HALT
"""

CHAIN_OF_ROWS = """
.input x : bf16[1, 30, 2, 64]
.input k : bf16[1, 90, 2, 64]
.scratch a : bf16[1, 30, 2, 64]
.scratch b : bf16[1, 30, 2, 64]
.output y : bf16[1, 30, 2, 64]
main:
    ATTENTION a.P, x.P, k.P, k.P causal
    ATTENTION b.P, a.P, k.P, k.P
    EW.add a, b, x
    ATTENTION b.P, a.P, k.P, k.P causal window=40
    ATTENTION a.P, b.P, k.P, k.P
    ATTENTION b.P, a.P, k.P, k.P
    ATTENTION y.P, b.P, k.P, k.P causal
    HALT
""".replace(".P", ".permute(0, 2, 1, 3)")

GROWING = """
.input q : bf16[1, 4, 1, 64]
.input k : bf16[1, 2, 400, 64]
.input v : bf16[1, 2, 400, 64]
.output y : bf16[6, 1, 4, 1, 64]
main:
    MOV s1, 0
    LOOP s2, 6
        ALU.mul s3, s1, 79
        ALU.add s3, s3, 5
        ATTENTION y[s1], q, k[:, :, :s3], v[:, :, :s3] causal
        ALU.add s1, s1, 1
    ENDLOOP
    HALT
"""


@cpu_machine.needs_compiler
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", [CHAIN, GROWING], ids=["chain", "growing"])
def test_what_follows_itself_on_the_emulated_device(text, seed):
    """Each waits for the one before, whose warps have said that they are done before they come back.

    And the same instruction with more splits each time, and in a second run: each takes up its own partial results.
    """
    program = assemble(text)
    given = tensors(program, {}, np.random.default_rng(5))
    session = CpuSession(program, hopper=True, seed=seed)
    outputs = session.run(given).outputs
    assert [c for c in compare(program, given, Result(outputs, {}, {}, "cpu", 0.0)) if not c.ok] == []
    assert session.run(given).outputs["y"].tobytes() == outputs["y"].tobytes()


@cpu_machine.needs_compiler
@pytest.mark.parametrize("build", [{"hopper": False}, {"hopper": True}, {"hopper": True, "checked": True}], ids=str)
def test_tiles_of_16_rows_follow_each_other(build):
    """Warps free their scratch memory, and say that they are done, before they come back; seven instructions, twice."""
    program = assemble(CHAIN_OF_ROWS)
    given = tensors(program, {}, np.random.default_rng(6))
    session = CpuSession(program, seed=4, **build)
    assert session.ways().count(("ATTENTION", ROWS_HELD)) == 6
    outputs = session.run(given).outputs
    assert [c for c in compare(program, given, Result(outputs, {}, {}, "cpu", 0.0)) if not c.ok] == []
    assert session.run(given).outputs["y"].tobytes() == outputs["y"].tobytes()


@pytest.mark.gpu
def test_tiles_of_16_rows_follow_each_other_on_a_gpu():
    """The same there."""
    program = assemble(CHAIN_OF_ROWS)
    given = tensors(program, {}, np.random.default_rng(6))
    session = DeviceMachine().load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    assert session.run(given)["y"].tobytes() == result["y"].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(CASES))
def test_results_are_within_the_bound(name):
    """Every output within its row's bound, and the same bits in a second run."""
    attributes, types, sizes = CASES[name]
    program = attention(attributes, **types)
    given = tensors(program, sizes, np.random.default_rng(7))
    session = DeviceMachine().load(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    again = session.run(given)
    assert all(result[n].tobytes() == again[n].tobytes() for n in result.outputs)


@pytest.mark.gpu
def test_layers_of_a_cache_are_places_of_a_tensor_map():
    """In a loop over layers, k and v move by a register."""
    program = assemble("""
.input q : bf16[1, 4, 150, 64]
.input k : bf16[3, 1, 2, 150, 64]
.input v : bf16[3, 1, 2, 150, 64]
.output y : bf16[3, 1, 4, 150, 64]
main:
    MOV s1, 0
    LOOP s2, 3
        ATTENTION y[s1], q, k[s1], v[s1] causal
        ALU.add s1, s1, 1
    ENDLOOP
    HALT
""")
    given = tensors(program, {}, np.random.default_rng(3))
    result = DeviceMachine().load(program).run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
