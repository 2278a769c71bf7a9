"""The machine's binary: compiled once, kept on disk, and told where it lies."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import build, cubin, source
from dla.emulator.device.elf import Elf
from dla.emulator.device.machine import DeviceMachine
from dla.isa.errors import BackendError, InputError

CODE = bytes(range(128))
SIZES, PLACE = 0x10, 0x18  # of two variables in .nv.global.init
ADDRESS_OF_DATA = 4


def elf(sections: dict[str, bytes]) -> bytes:
    """A file with these sections; the names of sections and of symbols are in .strtab, which comes last."""
    texts = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".strtab", *SYMBOLS))
    placed, body = [(0, 0, 0)], b""
    for name, contents in {**sections, ".strtab": texts}.items():
        placed.append((texts.index(name.encode() + b"\0"), 0x40 + len(body), len(contents)))
        body += contents
    headers = b"".join(struct.pack("<2I4Q2I2Q", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in placed)
    start = b"\x7fELF\x02\x01\x01".ljust(0x28, b"\0") + struct.pack("<Q", 0x40 + len(body)) + bytes(10)
    return start + struct.pack("<3H", 64, len(placed), len(placed) - 1) + body + headers


SYMBOLS = {"dla_shared_bytes": SIZES, "dla_code": PLACE, "dla_machine": 0}


def binary(*, initialised: bool = True) -> bytes:
    """What the assembler makes of two global variables and a kernel; `dla_code` points to the other variable."""
    names = b"\0" + b"".join(n.encode() + b"\0" for n in (".symtab", ".text.dla_machine", ".rela.nv.global.init"))
    names += b".strtab\0"
    symbols = bytes(24)
    for name, place in SYMBOLS.items():
        symbols += struct.pack("<I2BH2Q", len(names), 1, 0, 1, place, 8)
        names += name.encode() + b"\0"
    relocations = struct.pack("<3Q", SIZES, 1 << 32 | ADDRESS_OF_DATA, 0)
    if initialised:
        relocations += struct.pack("<3Q", PLACE, 1 << 32 | ADDRESS_OF_DATA, 0)
    return elf({".symtab": symbols, ".text.dla_machine": CODE, ".rela.nv.global.init": relocations})


def test_the_pointer_comes_to_the_kernel() -> None:
    """One relocation changes, and nothing else."""
    before, after = binary(), cubin.located(binary())
    assert Elf(after).contents(".text.dla_machine") == CODE
    first, second = struct.iter_unpack("<3Q", Elf(after).contents(".rela.nv.global.init"))
    assert first == (SIZES, 1 << 32 | ADDRESS_OF_DATA, 0)
    assert second == (PLACE, 3 << 32 | 2, 0)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 2
    assert cubin.code_bytes(after) == len(CODE)


def test_a_pointer_to_nothing_is_refused() -> None:
    """A variable without an address has no relocation that could be changed."""
    with pytest.raises(KeyError, match="dla_code"):
        cubin.located(binary(initialised=False))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02" + bytes(80), b".version 8.0", binary()[:200]])
def test_what_is_no_binary_is_refused(data: bytes) -> None:
    """Files that are cut short, or something else."""
    with pytest.raises(ValueError, match="ELF"):
        Elf(data)


class Nvrtc:
    """Compiles everything but "wrong"; counts what it was asked for."""

    NVRTCError = RuntimeError

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def getVersion(self) -> tuple[int, int]:  # noqa: N802  # NVRTC's names
        """Any."""
        return 13, 0

    def createProgram(self, text: str, name: str, headers: tuple[()], names: tuple[()]) -> str:  # noqa: N802
        """The text itself."""
        return text

    def compileProgram(self, program: str, options: tuple[str, ...]) -> None:  # noqa: N802
        """Raises for what is wrong."""
        self.asked.append(options)
        if program == "wrong":
            raise RuntimeError("NVRTC_ERROR_COMPILATION")

    def getProgramLog(self, program: str) -> str:  # noqa: N802
        """What is wrong."""
        return "machine.cu(1): error"

    def getCUBIN(self, program: str) -> bytes:  # noqa: N802
        """A binary."""
        return binary()

    def getPTX(self, program: str) -> bytes:  # noqa: N802
        """Text."""
        return b".version 8.0\0"

    def destroyProgram(self, program: str) -> None:  # noqa: N802
        """Nothing to do."""


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy's NVRTC, and a cache folder of the test's own."""
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "cache"))
    return SimpleNamespace(cuda=SimpleNamespace(nvrtc=Nvrtc()))


def test_a_build_is_compiled_once(cupy: Any) -> None:
    """By text and options; the second time it comes from disk."""
    first = cubin.built(cupy, "text", ("-arch=sm_90a",))
    assert first.read_bytes() == cubin.located(binary())
    assert cubin.built(cupy, "text", ("-arch=sm_90a",)) == first
    assert cupy.cuda.nvrtc.asked == [("-arch=sm_90a", "-ftz=true")]
    others = {cubin.built(cupy, "other", ("-arch=sm_90a",)), cubin.built(cupy, "text", ("-arch=sm_80",))}
    assert len(others | {first}) == 3


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_damaged_file_is_made_again(cupy: Any, length: int) -> None:
    """Whatever became of it: cut short, or empty."""
    path = cubin.built(cupy, "text", ("-arch=sm_90a",))
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    assert cubin.built(cupy, "text", ("-arch=sm_90a",)).read_bytes() == whole


def test_other_architectures_keep_their_binary(cupy: Any) -> None:
    """Only Hopper's machine asks where it lies, and not every assembler's file has the relocation."""
    assert cubin.built(cupy, "text", ("-arch=sm_80",)).read_bytes() == binary()


def test_a_virtual_architecture_gets_its_text(cupy: Any) -> None:
    """PTX, without what the compiler puts behind it."""
    path = cubin.built(cupy, "text", ("-arch=compute_80",))
    assert (path.suffix, path.read_bytes()) == (".ptx", b".version 8.0")


def test_what_does_not_compile_says_why_and_leaves_nothing(cupy: Any, tmp_path: Path) -> None:
    """The compiler's own message, and no file."""
    with pytest.raises(BackendError, match=r"NVRTC_ERROR_COMPILATION\nmachine.cu\(1\): error"):
        cubin.built(cupy, "wrong", ("-arch=sm_90a",))
    assert not list(tmp_path.rglob("machine-*"))


def test_a_cache_folder_that_cannot_be_made_is_named(cupy: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Before anything else goes wrong."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"cannot make '.*cache'"):
        cubin.built(cupy, "text", ("-arch=sm_90a",))


@pytest.mark.gpu
def test_the_machine_knows_where_its_code_lies() -> None:
    """What lies at the address that a launch is given is the code of the binary."""
    import cupy

    program = assemble(".program p\n.input x : f32[8]\n.output y : f32[8]\nmain:\n    EW.add y, x, 1\n    HALT\n")
    machine = DeviceMachine()
    machine.load(program).run({"x": np.zeros(8, np.float32)})
    kernel = build.kernel(checked=False, architecture=None, only=None, progress=print)
    if not kernel.target.hopper:
        pytest.skip("only Hopper's machine asks for its code")
    options = source.options(nvrtc=cupy.cuda.nvrtc.getVersion())
    path = cubin.built(cupy, source.source(), (*options, f"-arch={kernel.architecture}"))
    # The runtime copies nothing from there, but a kernel can read it.
    read = cupy.RawKernel(
        'extern "C" __global__ void read(const unsigned* from, unsigned* to) { to[threadIdx.x] = from[threadIdx.x]; }',
        "read",
    )
    words = cupy.zeros(1024, np.uint32)
    read((1,), (words.size,), (np.uint64(kernel.code), words))
    code = Elf(path.read_bytes()).contents(f".text.{source.KERNEL_NAME}")
    assert len(code) == kernel.code_bytes
    assert words.get().tobytes() == code[: words.nbytes]
