"""Integer registers for symbolic sizes: named dims come in, everything else is computed at the program's start."""

from __future__ import annotations

from collections.abc import Callable

from dla.compiler import dims
from dla.compiler.dims import Atom, Dim, Expr, Extreme, Quotient, Symbol
from dla.isa.errors import ModelError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import DimSymbol, Instruction
from dla.isa.registers import Register, RegisterClass, s

ALU = BY_MNEMONIC["ALU"]


class Registers:
    """Which register holds which size. Named dims are in s31 and downwards; computed sizes in s0 and upwards.

    What depends on a loop's counter is computed where it is used, by way of `emit`; the rest in `prologue`.
    """

    def __init__(self, symbols: tuple[Symbol, ...], emit: Callable[[Instruction], None]) -> None:
        self.prologue: list[Instruction] = []
        self.dims: list[DimSymbol] = []
        self._emit = emit
        self._held: dict[Dim, Register] = {}
        self._counters: dict[Symbol, list[Dim]] = {}  # with what was computed from each
        self._free = [s(i) for i in range(RegisterClass.INT.count)][::-1]
        # Given back by loops: the prologue runs before all of them, so it must not keep anything here.
        self._reusable: list[Register] = []
        if len(symbols) > len(self._free):
            raise _too_many()
        for symbol in symbols:
            register = self._free.pop(0)
            self.dims.append(DimSymbol(symbol.name, register.index, symbol.bound))
            self._held[Expr((((symbol,), 1),))] = register

    def holding(self, dim: Expr) -> Register:
        """A register with the value of `dim`."""
        (monomial, factor), *others = dim.terms
        if len(monomial) == factor == 1 and not others:
            return self._atom(monomial[0])
        if dim not in self._held:
            self._held[dim] = self._computed(dim)
            self._scope(dim)
        return self._held[dim]

    def enter(self, counter: Symbol) -> Register:
        """A register for a loop's counter, which `holding` then knows."""
        register = self._take(in_loop=True)
        self._held[Expr((((counter,), 1),))] = register
        self._counters[counter] = [Expr((((counter,), 1),))]
        return register

    def call(self, name: Symbol, dim: Expr) -> Expr:
        """`name` as another name of `dim`, until `leave`: offsets that differ by a constant then have one register."""
        named = Expr((((name,), 1),))
        self._held[named] = self.holding(dim)
        self._counters[name] = []
        return named

    def leave(self, counter: Symbol) -> None:
        """Give back the counter's register, and those of everything computed from it."""
        for dim in self._counters.pop(counter):
            register = self._held.pop(dim, None)
            if register is not None:
                self._reusable.append(register)
        self._held.pop(Expr((((counter,), 1),)), None)

    def _take(self, *, in_loop: bool) -> Register:
        if in_loop and self._reusable:
            return self._reusable.pop()
        if not self._free:
            raise _too_many()
        return self._free.pop()

    def _computed(self, dim: Expr) -> Register:
        """The instructions that compute `dim`, term by term, or from the same size without its constant."""
        in_loop = bool(dim.symbols & self._counters.keys())
        place = self._emit if in_loop else self.prologue.append
        total: Register | None = None
        constant = sum(factor for monomial, factor in dim.terms if not monomial)
        result = self._take(in_loop=in_loop)
        if constant and dim - constant in self._held:
            return self._alu("add", result, self._held[dim - constant], constant, place)
        spare: list[Register] = []  # for the later terms' products, which are read at once

        def product() -> Register:
            if total is None:
                return result
            if not spare:
                spare.append(self._take(in_loop=in_loop))
            return spare[0]

        for monomial, factor in dim.terms:
            if not monomial:
                continue
            term = self._atom(monomial[0])
            for atom in monomial[1:]:
                term = self._alu("mul", product(), term, self._atom(atom), place)
            if factor != 1:
                term = self._alu("mul", product(), term, factor, place)
            total = term if total is None else self._alu("add", result, total, term, place)
        assert total is not None, "an expression has a term with a symbol"
        if constant or total is not result:
            self._alu("add", result, total, constant, place)
        (self._reusable if in_loop else self._free).extend(spare)
        return result

    def _atom(self, atom: Atom) -> Register:
        """A register with the value of one atom."""
        dim = Expr((((atom,), 1),))
        if isinstance(atom, Symbol) or dim in self._held:
            return self._held[dim]
        in_loop = bool(dim.symbols & self._counters.keys())
        place = self._emit if in_loop else self.prologue.append
        result = self._take(in_loop=in_loop)
        if isinstance(atom, Extreme):
            self._alu(atom.kind, result, self._operand(atom.a), self._operand(atom.b), place)
        else:
            self._quotient(atom, result, place)
        self._held[dim] = result
        self._scope(dim)
        return result

    def _scope(self, dim: Expr) -> None:
        """Forget what depends on a counter at the end of the innermost loop, where it is computed."""
        if dim.symbols & self._counters.keys():
            self._counters[next(reversed(self._counters))].append(dim)

    def _quotient(self, atom: Quotient, result: Register, place: Callable[[Instruction], None]) -> None:
        """floor(a / b): ALU.div truncates, so what is left over is taken off first where a may be negative."""
        a, b = self._operand(atom.numerator), self._operand(atom.divisor)
        if dims.interval(atom.numerator)[0] < 0:
            self._alu("mod", result, a, b, place)
            a = self._alu("sub", result, a, result, place)
        self._alu("div", result, a, b, place)

    def _operand(self, dim: Dim) -> Register | int:
        return dim if isinstance(dim, int) else self.holding(dim)

    @staticmethod
    def _alu(kind: str, dst: Register, a: Register | int, b: Register | int,
             place: Callable[[Instruction], None]) -> Register:  # fmt: skip
        place(Instruction(ALU, kind, (), {"dst": dst, "a": a, "b": b}))
        return dst


def _too_many() -> ModelError:
    return ModelError(
        f"the model has more than {RegisterClass.INT.count} different symbolic sizes",
        hint="fix some of its dims: --fix NAME=SIZE",
    )
