"""The instruction set: one module per instruction (control in one), and this list.

To add an instruction: write its module, name its row here, and write its CUDA handler
(docs/adding-an-instruction.md). Forgetting one of them fails the build.
"""

from __future__ import annotations

from dla.isa.instructions import (
    act,
    allgather,
    allreduce,
    alltoall,
    attention,
    broadcast,
    control,
    conv,
    copy,
    ew,
    fill,
    gather,
    gemm,
    iota,
    norm,
    pad,
    permute,
    pool,
    reduce,
    reducescatter,
    resize,
    rnn,
    rope,
    scan,
    scatter,
    select,
    softmax,
    topk,
)
from dla.isa.table import Row

ROWS: tuple[Row, ...] = (
    *control.ROWS,
    copy.ROW,
    fill.ROW,
    iota.ROW,
    pad.ROW,
    gather.ROW,
    scatter.ROW,
    act.ROW,
    ew.ROW,
    select.ROW,
    reduce.ROW,
    scan.ROW,
    gemm.ROW,
    conv.ROW,
    pool.ROW,
    resize.ROW,
    norm.ROW,
    softmax.ROW,
    attention.ROW,
    rope.ROW,
    rnn.ROW,
    topk.ROW,
    allreduce.ROW,
    allgather.ROW,
    reducescatter.ROW,
    alltoall.ROW,
    broadcast.ROW,
    permute.ROW,
)
"""Every row, in order of opcode."""

BY_MNEMONIC: dict[str, Row] = {row.mnemonic: row for row in ROWS}
BY_OPCODE: dict[int, Row] = {row.opcode: row for row in ROWS}

if len(BY_OPCODE) != len(ROWS) or len(BY_MNEMONIC) != len(ROWS):
    raise ValueError("two rows share an opcode or a mnemonic")
