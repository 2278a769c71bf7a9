"""What lowering knows of matrix products: how their weights lie, and which batches are one large product."""

from __future__ import annotations

from collections.abc import Mapping

from dla.compiler import dims
from dla.compiler.graph import Value
from dla.compiler.lower.storage import View
from dla.isa.dtypes import DType


def is_weight(value: Value) -> bool:
    """Whether a constant is only the right matrix of products that tensor cores do in 16 bits, or as tf32.

    Each of their sums then reads neighbouring elements: a row of [N, K] streams for one sample as for many, and tensor
    cores take tf32 in no other order.
    """
    if value.rank < 2 or not value.users:
        return False
    narrow = value.dtype in (DType.F16, DType.BF16)
    return all(
        n.op == "GEMM" and (narrow or n.attributes.get("math", "exact") != "exact")
        and [k for k, v in enumerate(n.inputs) if v is value] == [1]
        for n in value.users
    )  # fmt: skip


def flattened(views: Mapping[str, View | None]) -> dict[str, View | None] | None:
    """The operands of a GEMM with one right matrix for the whole batch as those of one large product, if views allow.

    [B..., M, K] @ [K, N] is [B * M, K] @ [K, N]: fewer and fuller tiles.
    """
    out, a, b = views["out"], views["a"], views["b"]
    if out is None or a is None or b is None or len(b.dims) != 2 or len(out.dims) < 3 or len(a.dims) != len(out.dims):
        return None
    rows = dims.product(out.dims[:-1])
    flat: dict[str, View | None] = {}
    for name, view in views.items():
        if view is None or name == "b" or len(view.dims) < 2:
            flat[name] = view
            continue
        if view.dims[:-1] == out.dims[:-1]:
            shape = (rows, view.dims[-1])
        elif all(d == 1 for d in view.dims[:-1]):
            shape = (1, view.dims[-1])
        else:
            return None
        flat[name] = view.reshape(shape)
        if flat[name] is None:
            return None
    return flat
