"""A profile as tables in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import made_profiles as made
import pytest
from rich.console import Console

from dla.profiler.profile import Profile
from dla.profiler.table import SHOWN, parts


def text(profile: Profile, width: int = 200, *, colour: bool = False) -> str:
    """What is printed on a console of so many columns."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, force_terminal=colour, no_color=not colour)
    for part in parts(profile):
        console.print(part)
    return out.getvalue()


def line_of(printed: str, start: str) -> list[str]:
    """The words of the line that begins so."""
    return next(line.split() for line in printed.split("\n") if line.strip().startswith(start))


def test_an_instruction_has_all_its_figures() -> None:
    """Time and share, calls, one call, working and waiting, rates, the share of the roof, the native kernel."""
    printed = text(made.loop())
    heads = line_of(printed, "instruction")
    assert " ".join(heads).startswith(
        "instruction time share calls one call working waiting busy TFLOP/s GB/s flop/B of roof native / dla "
        "native kernel at how"
    )
    words = line_of(printed, "2  GEMM")
    assert words[:4] == ["2", "GEMM", "47.5", "us"]
    assert {"5", "62.0%", "made.dla:11"} <= set(words)
    assert "torch.nn.functional.linear (cuBLAS)" in printed


def test_the_longest_come_first_and_the_rest_is_summed() -> None:
    """A long program does not fill the screen."""
    profile = made.resnet(100, 4)
    printed = text(profile)
    times = sorted((f.time for f in profile.figures), reverse=True)
    rest = line_of(printed, "and")
    assert rest[:5] == ["and", f"{100 - SHOWN}", "more", f"{sum(times[SHOWN:]) * 1e6:.0f}", "us"]


def test_kinds_and_the_run_have_the_same_figures() -> None:
    """One call at least, at most and on average, rates and shares; and what the ceilings would allow the program."""
    printed, profile = text(made.loop(), 250), made.loop()
    assert " ".join(line_of(printed, "kind")) == (
        "kind written calls time share mean least most working waiting busy operations bytes "
        "TFLOP/s GB/s flop/B of roof"
    )
    (product,) = (f for f in profile.figures if f.name == "GEMM")
    assert line_of(printed, "GEMM")[1:3] == ["1", "5"]
    assert {f"{seconds * 1e6:.3g}" for seconds in product.spent[1:]} <= set(line_of(printed, "GEMM"))
    assert f"at the ceilings it would take {profile.roof * 1e6:.3g} us, {profile.roof / profile.wall:.1%}" in printed
    assert "; multiprocessors work 7" in printed


def test_what_never_ran_is_not_listed() -> None:
    """HALT and ENDLOOP take no line."""
    printed = text(made.loop())
    assert "HALT" not in printed
    assert "ENDLOOP" not in printed


@pytest.mark.parametrize("make", [made.chain, made.resnet, made.hostile, made.nothing])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(make: object, width: int) -> None:
    """Columns that do not fit are left out, and named; nothing is cut but long texts."""
    printed = text(make(), width)  # type: ignore[operator]
    assert max(map(len, printed.split("\n"))) <= width


def test_a_narrow_terminal_keeps_what_matters() -> None:
    """80 columns have times, shares, waits, rates, the roof and the native kernel's ratio, each of them whole."""
    printed = text(made.chain(), 80)
    heads = " ".join(line_of(printed, "instruction"))
    assert heads == "instruction time share waiting TFLOP/s GB/s of roof native / dla"
    assert "left out, as the terminal is narrow: calls, one call, working, busy, flop/B, native kernel" in " ".join(
        printed.split()
    )
    assert line_of(printed, "0  GEMM")[-1] == "0.88"


def test_tables_without_rows_are_left_out() -> None:
    """Of a run that trapped at once: no heads, and no empty lines in their place."""
    printed = text(made.nothing())
    assert "\n\n\n" not in printed
    assert "kind" not in printed


def test_the_whole_program_is_compared() -> None:
    """With each framework: its time, the ratio, whether results agree, or why there is no time."""
    printed = text(made.resnet())
    profile = made.resnet()
    assert line_of(printed, "PyTorch, eager")[2:] == [
        "2.4",
        "ms",
        f"{2.4e-3 / profile.wall:.2f}",
        "900",
        "ms",
        "agrees",
    ]
    assert line_of(printed, "torch.compile") == ["torch.compile", "not", "installed"]


def test_a_wrong_native_result_is_loud() -> None:
    """A ratio against a kernel that computes something else is worth nothing."""
    assert line_of(text(made.chain(), 80), "1  GEMM")[-2:] == ["0.81", "WRONG"]


def test_memory_and_device_are_named() -> None:
    """Bytes by segment, and a line on what measured."""
    printed = text(made.chain())
    assert line_of(printed, "scratch") == ["scratch", "393,216"]
    assert "measured on NVIDIA H200, driver 580.159.04, clock 1980 MHz, torch 2.11.0, commit ba394f2" in printed


def test_a_trap_and_lost_spans_are_said() -> None:
    """Neither may look like a whole run."""
    profile = made.chain()
    lost = replace(profile, trap="instruction 3: bad", trace=replace(profile.trace, lost=1234))
    printed = text(lost)
    assert "it trapped, so this is of the time before: instruction 3: bad" in printed
    assert "1,234 spans were lost" in printed
    assert "% around them or not recorded" in printed


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    """The styles are rich's, so NO_COLOR works as everywhere; hostile names bring none of their own."""
    assert "\x1b[" in text(made.hostile(), colour=True)
    assert "\x1b" not in text(made.hostile())
    assert "\u202e" not in text(made.hostile())
