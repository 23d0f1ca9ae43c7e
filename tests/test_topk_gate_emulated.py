"""topk_gate's kernels on the host, a fiber a thread, under AddressSanitizer, against a float64 reference."""

import itertools
import struct
from pathlib import Path

import emulate
import gate_reference as ref
import numpy as np
import pytest
import torch
from emulate import HERE, ROOT, compile_program, on_the_host, replaced
from test_topk_emulated import GATE_ELEMENT

pytestmark = on_the_host

#: What a host compiler cannot take, and what stands in for it; each must be found.
REPLACED = {
    "rows.cuh": [
        (r"#include <cuda_runtime.h>", ""),
        (r"  uint4 v;\n  asm volatile\(.*?\);\n  return v;", "  return *static_cast<const uint4*>(p);"),
    ],
    "gate_element.cuh": GATE_ELEMENT,
    "gate_warp.cuh": [(r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];", "")],
}
DTYPES = {torch.float16: 8, torch.bfloat16: 9, torch.float32: 10, torch.float64: 11}  # enum Dtype


@pytest.fixture(scope="session")
def gate_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated_gate")
    (folder / "topk").mkdir()
    for file in [*(ROOT / "csrc/topk").glob("*.*h"), ROOT / "csrc/topk/gate.cu"]:
        text = replaced(file, REPLACED.get(file.name, []))
        (folder / "topk" / file.name).write_text(text)
    return compile_program(folder / "emulated_gate", [HERE / "emulator/gate.cpp"], [folder])


def run(program: Path, problems: list[dict]) -> float:
    """Route all problems, check each result, return the mean share of rows with comparable indices."""
    sent = b""
    for p in problems:
        x, bias, options = p["x"], p["options"].get("bias"), p["options"]
        bias_dtype = DTYPES[torch.float32 if bias is None else bias.dtype]
        numbers = (
            DTYPES[x.dtype], bias_dtype, *x.shape, p["k"], options["num_groups"], options["topk_groups"],
            options["scoring"] == "sigmoid", options["renormalize"], bias is not None, p["wide"], p["offset"],
            p["seed"],
        )  # fmt: skip
        sent += struct.pack("13qd", *numbers, options["scale"])
        sent += x.view(torch.uint8).numpy().tobytes()
        sent += b"" if bias is None else bias.view(torch.uint8).numpy().tobytes()
    out = emulate.run(program, sent=sent)
    at, shares = 0, []
    for p in problems:
        shape = (len(p["x"]), p["k"])
        result = []
        for kind in (np.float64 if p["x"].dtype == torch.float64 else np.float32,
                     np.int64 if p["wide"] else np.int32):  # fmt: skip
            count = shape[0] * shape[1]
            part = np.frombuffer(out, kind, count, at).reshape(shape)
            at += part.nbytes
            result.append(torch.from_numpy(part.copy()))
        shares.append(ref.check(result, p["x"], p["k"], **p["options"]))
    assert at == len(out)
    return sum(shares) / len(shares)


#: (experts, k, groups, kept): lanes of 8, 16 and 32, in whole vectors and not; a warp a row; the limits.
SIZES = [
    (8, 2, 1, 1), (7, 3, 1, 1), (64, 6, 1, 1), (100, 5, 1, 1), (256, 8, 1, 1), (160, 12, 1, 1),
    (255, 8, 1, 1), (512, 24, 1, 1), (400, 16, 1, 1), (1, 1, 1, 1), (40, 30, 1, 1), (513, 8, 1, 1),
    (256, 8, 8, 4), (2048, 64, 1, 1), (2048, 64, 64, 3), (2048, 1, 2048, 1), (60, 15, 4, 1),
    (66, 20, 33, 20), (12, 4, 6, 3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_match_the_reference(gate_program: Path, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(DTYPES[dtype])
    problems = []
    for (n, k, groups, kept), kind in itertools.product(SIZES, ref.KINDS):
        for biased in (False, True):
            bias = torch.from_numpy(generator.choice(np.arange(-4, 5) / 16, n))
            bias[generator.random(n) < 0.1] = -torch.inf
            draw = generator.integers(0, 2, 4)
            problems.append({
                "x": ref.random_logits(1 if n > 600 else 5, n, dtype, generator, kind),
                "k": k,
                "wide": bool(draw[0]),
                "offset": int(generator.choice([0, 0, 1])),
                "seed": len(problems),
                "options": {
                    "scoring": "sigmoid" if draw[1] else "softmax",
                    "bias": bias.to(dtype if draw[2] else torch.float32) if biased else None,
                    "renormalize": bool(draw[3]),
                    "num_groups": groups,
                    "topk_groups": kept,
                    "scale": float(generator.choice([1.0, 2.5])),
                },
            })  # fmt: skip
    assert run(gate_program, problems) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_crowded_lanes(gate_program: Path, dtype: torch.dtype) -> None:
    options = {"scoring": "softmax", "renormalize": False, "num_groups": 1, "topk_groups": 1, "scale": 1.0}
    shared = {"wide": True, "offset": 0, "seed": 1, "options": options}
    sizes = [(8, 6), (16, 8), (16, 12), (32, 24)]
    problems = [{"x": ref.crowded(5, lanes, k, dtype), "k": k, **shared} for lanes, k in sizes]
    assert run(gate_program, problems) == 1
