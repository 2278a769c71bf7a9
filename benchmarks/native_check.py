"""Beside the native times of a profile (`dla profile NET --random 1 --native --json net.json`) those of PyTorch alone.

`python benchmarks/native_check.py net.json [0.05]`: exit code 1 where one differs by more than that, or there is none.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor as Thread
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def kernel(name, t, a):
    """What PyTorch calls the work of an instruction on tensors `t` with attributes `a`; None for what is left out."""
    match name, a.get("steps"):
        case "GEMM", [] if "c" not in t and a["alpha"] == 1:
            return lambda: torch.matmul(t["a"], t["b"])
        case "GEMM", ["bias"] if "c" not in t and a["alpha"] == 1 and t["out"].ndim == t["a"].ndim == 2:
            return lambda: torch.addmm(t["bias"].reshape(-1), t["a"], t["b"])
        case "CONV", [] | ["bias"] | ["bias", "act"] if t["x"].ndim == 4 and a["act"] in ("identity", "relu"):
            x, w, (*pads, below, right) = t["x"].permute(0, 3, 1, 2), t["w"].permute(0, 3, 1, 2), a["pads"]
            options = t["bias"].reshape(-1) if "bias" in t else None, a["strides"], pads, a["dilations"], a["groups"]
            if pads == [below, right] and not any(a["gaps"]):
                return lambda: (torch.relu if a["act"] == "relu" else torch.nn.Identity())(F.conv2d(x, w, *options))
        case "SOFTMAX.soft", _:
            return lambda: torch.softmax(t["x"], a["axis"])
        case "NORM.layer", _:
            return lambda: F.layer_norm(t["x"], t["x"].shape[-1:], t.get("gain"), t.get("bias"), a["eps"])
        case "NORM.rms", _ if "bias" not in t:
            return lambda: F.rms_norm(t["x"], t["x"].shape[-1:], t.get("gain"), a["eps"])
        case "ATTENTION", _ if not (a["window"] or a["softcap"] or a["position"] or {"mask", "lse"} & t.keys()):
            q, k, v, scale, causal = t["q"], t["k"], t["v"], a["scale"] or None, a["causal"]
            if q.shape[1] == k.shape[1] and (not causal or q.shape[2] == k.shape[2]):
                return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        case "EW.add" | "EW.sub" | "EW.mul", _:
            return lambda: getattr(torch, name[3:])(t["a"], t["b"])
    return None


def tensor(operand, device):
    """Random numbers in an operand's type and layout."""
    reach = 1 + sum((n - 1) * stride for n, stride in zip(operand["shape"], operand["strides"], strict=True))
    numbers = torch.randn(max(reach, 1), device=device, dtype=TYPES[operand["dtype"]])
    return numbers.as_strided(operand["shape"], operand["strides"])


def median(runs, flush, count=30):
    """The median time of all these runs with cold caches: in a CUDA graph by events, or on a CPU by its clock."""
    [run() for run in runs * 3]  # what is done only once is done now
    if flush.is_cuda:
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            [run() for run in runs]
    action, taken = graph.replay if flush.is_cuda else runs[0], []
    for _ in range(count):
        flush.add_(1)
        began, events = time.perf_counter(), [torch.cuda.Event(enable_timing=True) for _ in range(2 * flush.is_cuda)]
        [e.record() for e in events[:1]], action(), [e.record() for e in events[1:]], [e.synchronize() for e in events]
        taken.append(events[0].elapsed_time(events[1]) / 1e3 if events else time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def seconds(make, flush):
    """Of one call; of a short one on a GPU, what each of `more` on other operands adds to a graph."""
    one = median([make()], flush)
    more = min(16, max(4, int(2e-4 / one))) if flush.is_cuda and one < 2e-4 else 0
    return (median([make() for _ in range(1 + more)], flush) - one) / more if more else one


def main():
    """Compare and print."""
    profile, within = json.loads(Path(sys.argv[1]).read_text()), float((sys.argv[2:] or ["0.05"])[0])
    device = "cuda" if profile["machine"] == "gpu" and torch.cuda.is_available() else "cpu"
    print("on the GPU" if device == "cuda" else "no GPU, or no profile of one: on the CPU, whose times vary")
    flush = torch.zeros(2**28 if device == "cuda" else 2**26, dtype=torch.uint8, device=device)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit, ratios = True, 0, {}  # 0: tries all of them
    for one in profile["instructions"]:
        operands, attributes, name, native = (one[key] for key in ("operands", "attributes", "name", "native"))
        work, types = json.dumps([name, operands, attributes]), {operand["dtype"] for operand in operands.values()}
        if native and work not in ratios and len(types) == 1 and types <= TYPES.keys():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = attributes.get("math") == "tf32"
            make = lambda: kernel(name, {k: tensor(o, device) for k, o in operands.items()}, attributes)  # noqa: E731, B023
            if make():
                threads = [Thread(1) for _ in range(64 if flush.is_cuda else 1)]  # what cuDNN picks for one varies
                rough = [t.submit(lambda: median([make()] * 8, flush, 5)).result() for t in threads]  # noqa: B023
                ours = threads[rough.index(min(rough))].submit(seconds, make, flush).result() * 1e6
                [t.shutdown() for t in threads]
                ratios[work] = native["cold_us"] / ours
                print(f"{one['index']:6} {name:14} {native['cold_us']:9.2f} us, here {ours:9.2f}: {ratios[work]:.3f}")
    off = sum(not 1 / (1 + within) <= r <= 1 + within for r in ratios.values())
    print(f"{len(ratios)} kinds of work compared, {off} differ by more than {within:.0%}")
    return int(off > 0 or not ratios)


raise SystemExit(main())
