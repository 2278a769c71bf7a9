"""What a plain script measures beside the native times of a profile: PyTorch alone, nothing of this package.

    dla profile model.onnx --random 1 --native --json profile.json
    python benchmarks/native_check.py profile.json

The exit code is 1 where a time differs by more than 5 %, or where there is none to compare.
"""

import argparse
import json
import time

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


def seconds(run, flush):
    """The median time of `run` with cold caches: on a GPU of a CUDA graph, by events; on a CPU by its clock."""
    run(), run(), run()  # what is done only once is done now
    if flush.is_cuda:
        graph, begin, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.graph(graph):
            run()
    taken = []
    for _ in range(30):
        flush.add_(1)
        if flush.is_cuda:
            begin.record(), graph.replay(), end.record(), end.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        else:
            began, _ = time.perf_counter(), run()
            taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


@torch.inference_mode()
def main():
    """Compare, print, and say how it went."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("profile", type=argparse.FileType(), help="what dla profile --native --json wrote")
    options.add_argument("--within", type=float, default=0.05, help="the share by which times may differ")
    given = options.parse_args()
    profile = json.load(given.profile)
    device = "cuda" if profile["machine"] == "gpu" and torch.cuda.is_available() else "cpu"
    print("on the GPU" if device == "cuda" else "no GPU, or no profile of one: on the CPU, whose times vary")
    flush = torch.zeros(2**28 if device == "cuda" else 2**26, dtype=torch.uint8, device=device)
    torch.backends.cudnn.benchmark, ratios = True, {}
    for one in profile["instructions"]:
        operands, attributes, name = one["operands"], one["attributes"], one["name"]
        work, types = json.dumps([name, operands, attributes]), {operand["dtype"] for operand in operands.values()}
        if one["native"] and work not in ratios and len(types) == 1 and types <= TYPES.keys():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = attributes.get("math") == "tf32"
            run = kernel(name, {key: tensor(operand, device) for key, operand in operands.items()}, attributes)
            if run is not None:
                theirs, ours = one["native"]["cold_us"], seconds(run, flush) * 1e6
                print(f"{one['index']:6} {name:14} profile {theirs:9.2f} us, here {ours:9.2f} us: {theirs / ours:.3f}")
                ratios[work] = theirs / ours
    off = sum(not 1 / (1 + given.within) <= ratio <= 1 + given.within for ratio in ratios.values())
    print(f"{len(ratios)} kinds of work compared, {off} differ by more than {given.within:.0%}")
    return int(off > 0 or not ratios)


raise SystemExit(main())
