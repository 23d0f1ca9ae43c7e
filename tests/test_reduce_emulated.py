"""Kernels of the reductions on the host, a fiber a thread, under AddressSanitizer, beside the CPU's."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from emulate import HERE, ROOT, compile_program, on_the_host
from emulate import run as run_program
from reduce_cases import make

from torch_gpuprims import reduce_fake as codes

pytestmark = on_the_host

STATS, DOT = len(codes.NAMES), len(codes.NAMES) + 1
HALF = """
struct __half { _Float16 value; };
inline float __half2float(__half h) { return static_cast<float>(h.value); }
inline __half __float2half_rn(float x) { return {static_cast<_Float16>(x)}; }
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "reduce").mkdir()
    for file in (ROOT / "csrc/reduce").glob("*.*h"):
        text = file.read_text().replace("#include <cuda_runtime.h>", '#include "common/launch.h"')
        text = text.replace("#include <cuda_fp16.h>\n", '#include "half.h"\n')
        text = text.replace("extern __shared__ __align__(16) unsigned char dynamic_memory[];\n", "")
        (folder / "reduce" / file.name).write_text(text)
    (folder / "half.h").write_text("#pragma once\n" + HALF)
    source = folder / "all.cpp"
    files = sorted((ROOT / "csrc/reduce").glob("*.cu"))
    mine = [path for path in files if not path.name.startswith(("segment_", "histogram"))]
    kernels = [f'#include "{path}"\n' for path in mine]
    source.write_text(
        '#include "common/launch.h"\n' + "".join(kernels) + f'#include "{HERE}/emulator/reduce.cpp"\n'
    )
    return compile_program(folder / "emulated_reduce", [source], [folder])


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()  # bytes() asks for one at a time


@dataclass
class Case:
    x: torch.Tensor
    op: int
    dims: list[int] | None = None
    dtype: int = -1
    correction: float = 1.0
    chunks: int = 0
    indices: bool = False
    other: torch.Tensor | None = None  # of dot

    def expected(self) -> list[torch.Tensor]:
        if self.op == DOT:
            assert self.other is not None
            return [torch.ops.gpuprims.dot(self.x, self.other)]
        if self.op == STATS:
            found = torch.ops.gpuprims.stats(self.x, self.dims, False, self.correction, self.indices)
            return list(found if self.indices else found[:5])
        return [torch.ops.gpuprims.reduce(self.x, self.op, self.dims, False, self.dtype, self.correction)]

    def packed(self) -> bytes:
        x, other = self.x, self.other
        storage = x.untyped_storage()
        data = bytes_of(storage)
        other_at = 0
        if other is not None:
            other_at = storage.nbytes() // x.itemsize + other.storage_offset()
            data += bytes_of(other.untyped_storage())
        reduced = sum(1 << d for d in codes.reduced_dims("reduce", self.dims, x.dim()))
        out = self.expected()[0].dtype
        shape = [*x.shape, *[1] * (8 - x.dim())]
        strides = [*x.stride(), *[1] * (8 - x.dim())]
        numbers = (
            self.op, codes.DTYPES.index(x.dtype), codes.DTYPES.index(out), x.dim(), reduced,
            x.storage_offset(), len(data), self.chunks, self.indices, other_at,
        )  # fmt: skip
        return struct.pack("10qd16q", *numbers, self.correction, *shape, *strides) + data


def run(program: Path, cases: list[Case], tmp_path: Path, **env: str) -> None:
    (tmp_path / "cases").write_bytes(b"".join(case.packed() for case in cases))
    run_program(program, tmp_path / "cases", tmp_path / "results", **env)
    results = (tmp_path / "results").read_bytes()
    at = 0
    for case in cases:
        for i, want in enumerate(case.expected()):
            size = want.numel() * want.itemsize
            got = (
                torch.frombuffer(bytearray(results[at : at + size]), dtype=want.dtype)
                if size
                else want.reshape(-1)
            )
            at += size
            compare(got.reshape(want.shape), want, case, i)
    assert at == len(results)


def compare(got: torch.Tensor, want: torch.Tensor, case: Case, output: int) -> None:
    name = f"{case.op} {list(case.x.shape)} {case.x.stride()} {case.x.dtype} {case.dims} output {output}"
    exact = case.op not in (codes.VAR, codes.STD, codes.LOGSUMEXP, STATS) or not want.is_floating_point()
    if exact or (case.op == STATS and output < 2):
        same = (
            torch.equal(got.nan_to_num(7), want.nan_to_num(7))
            if want.is_floating_point()
            else torch.equal(got, want)
        )
        assert same, f"{name}: {got} {want}"
    else:
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}
        bound = tolerance[want.dtype]
        torch.testing.assert_close(got, want, rtol=bound, atol=bound, equal_nan=True, msg=name)


OPS = [op for op in range(STATS + 1) if op != codes.PROD]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.int64,
    torch.uint64,
    torch.bool,
]


def ops_for(dtype: torch.dtype) -> list[int]:
    if dtype.is_floating_point:
        return OPS
    return [codes.SUM, codes.MAX, codes.MIN, codes.ARGMAX, codes.ARGMIN, codes.ANY, codes.ALL]


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=str)
def test_rows_and_columns(program: Path, dtype: torch.dtype, tmp_path: Path) -> None:
    cases = []
    for n in (1, 10, 64, 130, 300, 600):
        rows = make((3, n), dtype, "cpu", n)
        wide = torch.zeros(3, n + 3, dtype=dtype)
        wide[:, 1:-2] = rows
        if dtype.is_floating_point:
            rows[1, n // 2] = math.nan
            rows[2] = -math.inf
        for op in ops_for(dtype):
            for x, dims in ((rows, [1]), (wide[:, 1:-2], [1]), (rows.t().contiguous(), [0])):
                cases.append(Case(x, op, dims, indices=op == STATS and n % 2 == 0))
    run(program, cases, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint32, torch.int8], ids=str)
def test_chunks_and_groups(program: Path, dtype: torch.dtype, tmp_path: Path) -> None:
    cases = []
    for n in (4101, 12_289, 40_000):
        x = make((1 + (n < 5000), n), dtype, "cpu", n)
        for op in ops_for(dtype):
            chunks = (0, 1, 2, 4, 8)[(n + op) % 5]
            cases.append(Case(x, op, [1], chunks=chunks, indices=True))
            if n < 20_000:
                cases.append(Case(x.t().contiguous(), op, [0], chunks=chunks, indices=True))
    many = make((290_000,), dtype, "cpu")  # more groups than one
    for chunks in (1, 2, 8):
        cases.append(Case(many, codes.SUM, [0], chunks=chunks))
    cases.append(Case(many[1:], codes.ARGMAX, [0], chunks=4))
    cases.append(Case(many.view(-1, 2), codes.SUM, [0]))
    cases.append(Case(many.view(-1, 2)[:, 1], codes.MAX, [0]))
    run(program, cases, tmp_path)


def test_other_layouts(program: Path, tmp_path: Path) -> None:
    cases = []
    for dtype in (torch.float32, torch.int32):
        x = make((3, 10, 6, 4), dtype, "cpu")
        for op in (codes.SUM, codes.MAX, codes.ANY, *[codes.VAR, STATS] * dtype.is_floating_point):
            for y in (x, x[:, ::2], x.permute(2, 0, 3, 1), x[..., 1:3], x[:, :1].expand(3, 7, 6, 4)):
                for dims in ([0], [1], [3], [0, 2], [1, 3], [0, 1, 3], [2, 3], None):
                    cases.append(Case(y, op, dims))
        for y in (x, x.permute(2, 0, 3, 1), x[:, ::3]):
            cases.append(Case(y, codes.ARGMAX))
    cases += [
        Case(torch.zeros(3, 0), op, [1])
        for op in (codes.SUM, codes.ANY, codes.ALL, codes.VAR, codes.LOGSUMEXP)
    ]
    cases += [Case(torch.zeros(()), op) for op in (codes.SUM, codes.ARGMAX)]
    cases += [Case(make((200, 300), torch.float32, "cpu").t(), codes.SUM, [0])]
    run(program, cases, tmp_path)


def test_pieces_one_after_another(program: Path, tmp_path: Path) -> None:
    """More threads than a multiprocessor has places for: each takes several pieces of 64 rows."""
    x = make((330, 6144), torch.float32, "cpu")
    run(program, [Case(x, op, [0]) for op in (codes.SUM, codes.ARGMAX, codes.VAR)], tmp_path)


@pytest.mark.parametrize("pieces", ["1", "2", "8"])
def test_rows_of_columns_that_are_replaced(program: Path, pieces: str, tmp_path: Path) -> None:
    """Whole pieces, whose rows are loaded as those before them enter, and what is left over."""
    cases = []
    shapes = ((1100, 136), (64, 1000), (2, 640, 64), (700, 32), (200, 30))
    for shape in shapes:
        x = make(shape, torch.float32, "cpu", shape[-1])
        x[..., 70 % shape[-2] :, 1] = math.nan
        x[..., 3, 2] = math.inf
        x[..., 4] = -math.inf
        x[..., 5] = 1e5 + x[..., 5] / 8
        x[..., 9, 7] = math.nan
        for op in (codes.ARGMAX, codes.ARGMIN, codes.VAR, codes.LOGSUMEXP, STATS):
            cases.append(Case(x, op, [x.dim() - 2]))
    run(program, cases, tmp_path, GPUPRIMS_REDUCE_PIECES=pieces)


def test_rows_that_are_neighbours(program: Path, tmp_path: Path) -> None:
    """The last dimension among the reduced ones: eight rows a load where they are aligned."""
    cases = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.uint8, torch.int64):
        for shape in ((5, 3, 16), (2, 6, 72), (3, 40, 8), (3, 4, 12), (2, 3, 128)):
            x = make(shape, dtype, "cpu", shape[1])
            for op in (codes.SUM, codes.MAX, *[codes.VAR, STATS] * dtype.is_floating_point):
                cases += [Case(make((3000, 3), dtype, "cpu")[:, :n], op, [1]) for n in (1, 2)]
                cases += [Case(x, op, [0, 2]), Case(x[:, 1:], op, [0, 2]), Case(x[..., 1:], op, [0, 2])]
    run(program, cases, tmp_path)


def test_norms_products_and_given_dtypes(program: Path, tmp_path: Path) -> None:
    cases = []
    for n in (6, 200, 5000):
        x = make((3, n), torch.float32, "cpu", n)
        for y, dims in ((x, [1]), (x.t().contiguous(), [0])):
            cases += [Case(y, op, dims) for op in (codes.NORM1, codes.NORM_INF)]
            cases.append(Case(y, codes.SUM, dims, dtype=codes.DTYPES.index(torch.float64)))
            cases.append(Case(1 + y / 1000, codes.PROD, dims))
            cases.append(Case(y.int(), codes.MEAN, dims, dtype=codes.DTYPES.index(torch.float64)))
            cases.append(Case((y * 3).int() | 1, codes.PROD, dims))
    run(program, cases, tmp_path)


def test_dot(program: Path, tmp_path: Path) -> None:
    cases = []
    for dtype in FLOATS:
        for n in (1, 100, 5000, 40_000):
            x, y = make((n + 4,), dtype, "cpu"), make((n + 4,), dtype, "cpu", 1)
            for i, j in ((0, 0), (1, 4), (3, 2)):
                cases.append(Case(x[i : i + n], DOT, other=y[j : j + n], chunks=n // 20_000))
    run(program, cases, tmp_path)
