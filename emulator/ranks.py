"""The tensors of several ranks: how many ranks there are, and what each of them gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dla.emulator.binding import Bound, as_array, bind, suggest
from dla.isa import weights
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.errors import InputError
from dla.isa.names import shown
from dla.isa.program import ConstBlock, Program
from dla.isa.ranks import MAX_WORLD, list_with, lists_of, piece_of


def world_of(program: Program, ranks: int | None) -> int:
    """How many ranks run `program`: `ranks`, or if that is None as many as it declares, or one. Raises InputError."""
    if ranks is None:
        return program.world or 1
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MAX_WORLD:
        raise InputError(f"a world has 1 to {MAX_WORLD} ranks, not {shown(ranks)}")
    if program.world not in (0, ranks):
        raise InputError(f"the program is for {program.world} ranks, not for {ranks}",
                         hint=f"leave ranks out, or make it a program for {ranks}: .world {ranks}")  # fmt: skip
    return ranks


def distinct_names(program: Program, ranks: int) -> None:
    """Raise InputError where the output of one rank could be called as another tensor is.

    An output whose size may differ from rank to rank is told as `y.rank0`, `y.rank1`, ...
    """
    named = {symbol.register for symbol in program.dims}  # the same on all ranks
    uneven = {
        tensor.name for tensor in program.in_segment(Segment.OUTPUT)
        if any(isinstance(dim, Dynamic) and dim.register not in named for dim in tensor.descriptor.dims)
    }  # fmt: skip
    for name in program.by_name if ranks > 1 else ():
        output, rank = tensor_of(name, ())
        if output in uneven and rank is not None and rank < ranks:
            raise InputError(f"output '{shown(output)}' may be of another size on each rank; that of rank {rank} is "
                             f"then called '{shown(name)}', as another tensor is",
                             hint="give one of them another name")  # fmt: skip


def tensor_of(name: str, tensors: Collection[str]) -> tuple[str, int | None]:
    """The tensor that `name` names, and the rank where it is that of one rank: `x`, `x.rank0`, `x.rank1`, ..."""
    tensor, dot, rank = name.rpartition(".rank")
    if name in tensors or not (dot and rank.isascii() and rank.isdigit() and len(rank) < 10):
        return name, None
    return tensor, int(rank)


def split(program: Program, segment: Segment, values: Mapping[str, Any], ranks: int) -> list[dict[str, Any]]:
    """What each of `ranks` ranks gets of the tensors of `segment` that are given.

    A tensor is given with a leading axis of all ranks, or without it, then each rank gets the same; or for each rank
    by itself, as `x.rank0`, `x.rank1`, ... Raises InputError where neither fits. Types and the other dims are looked
    at when each rank's are bound.
    """
    tensors = {tensor.name: tensor.descriptor for tensor in program.in_segment(segment)}
    found: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for given, value in values.items():
        name, rank = tensor_of(given, tensors)
        if rank is not None:
            _set(found, tensors, name, [rank], [value], given)
            continue
        array = as_array(value, f"{segment.text} '{shown(given)}'")
        if given in tensors and array.ndim == tensors[given].rank + 1:
            if array.shape[0] != ranks:
                raise InputError(f"{segment.text} '{shown(given)}' is given for {array.shape[0]} ranks, "
                                 f"and there are {ranks}", hint="its first axis is that of ranks")  # fmt: skip
            _set(found, tensors, given, range(ranks), list(array), given)
        else:
            _set(found, tensors, given, range(ranks), [array] * ranks, given)
    for name in tensors:
        missing = [rank for rank, one in enumerate(found) if name not in one]
        if 0 < len(missing) < ranks:
            raise InputError(f"{segment.text} '{shown(name)}' is given for some ranks, but not for rank {missing[0]}",
                             hint=f"give {name}.rank{missing[0]}, too")  # fmt: skip
    return found


def _set(
    found: list[dict[str, Any]], tensors: Mapping[str, Any], name: str, ranks: Sequence[int], values: Sequence[Any],
    given: str,
) -> None:  # fmt: skip
    if name not in tensors:
        raise InputError(f"the program has no such tensor: '{shown(given)}'", hint=suggest(name, tensors))
    for rank, value in zip(ranks, values, strict=True):
        if rank >= len(found):
            last = len(found) - 1
            raise InputError(f"'{shown(given)}' is for rank {rank}, which is not there", hint=f"ranks are 0 to {last}")
        if name in found[rank]:
            raise InputError(f"'{shown(name)}' is given twice for rank {rank}")
        found[rank][name] = value


def bind_ranks(
    program: Program, inputs: Sequence[Mapping[str, Any]], dims: Mapping[str, int] | None = None
) -> list[Bound]:
    """The inputs of each rank, bound (see `binding.bind`). Raises InputError, also where named dims differ."""
    bound = []
    for rank, one in enumerate(inputs):
        try:
            bound.append(bind(program, one, dims))
        except InputError as error:
            raise InputError(f"rank {rank}: {error.message}", hint=error.hint) from None
        for name, size in bound[-1].dims.items():
            if size != bound[0].dims[name]:
                raise unequal_dims(name, bound[0].dims[name], rank, size)
    return bound


def unequal_dims(name: str, first: int, rank: int, size: int) -> InputError:
    """What to say where a named dim is not on all ranks what it is on the first."""
    return InputError(
        f"dim '{name}' is {first} on rank 0 and {size} on rank {rank}",
        hint="named dims are the same on all ranks: pad, and pass how much counts as an input",
    )


def constants_of(program: Program, rank: int) -> list[ConstBlock]:
    """The constants that `rank` has, by offset: its pieces of those that are cut."""
    pieces = []
    for shard in program.shards:
        tensor = program.by_name[shard.tensor].descriptor
        ranks = list_with(lists_of(program.groups, shard.group, program.world), rank)
        pieces.append(ConstBlock(tensor.offset, piece_of(shard, tensor, ranks, rank)))
    return sorted((*weights.blocks(program), *pieces), key=lambda block: block.offset)
