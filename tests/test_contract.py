"""Every registered op through every property of the contract; the table is in contract/, one file an op."""

import shutil
from typing import Any

import pytest
import torch
from contract import OPS
from contract.calls import arguments, bound, floats, gradients, holds, outputs, same
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

# Names of the tests hold the slice's word, so that `-k aggregate` finds all of them.
IDS = {key: key if op.word in key else f"{op.word}-{key}" for key, op in OPS.items()}
ROWS = [pytest.param(key, op, id=IDS[key]) for key, op in OPS.items()]
CALLS = [
    pytest.param(op, op.calls[name], id=f"{IDS[key]}-{name}") for key, op in OPS.items() for name in op.calls
]
each_call = pytest.mark.parametrize("op, call", CALLS)
each_op = pytest.mark.parametrize("name, op", ROWS)
SIZES = (4, 7, 13)  # the first makes all sizes of a call differ: equal ones would share a symbol
LARGE = 20_000  # enough for the CPU kernels to use several threads


def test_every_op_is_in_the_table():
    names = torch._C._dispatch_get_all_op_names()
    registered = {name.split("::")[1].split(".")[0] for name in names if name.startswith("gpuprims::")}
    # An op _name is the common call of op name, for calls without gradients, _name_ the one in place: the
    # functions' tests see them.
    registered = {name for name in registered if not name.endswith("_parts")}  # for benchmarks
    internal = {name for name in registered if name.startswith("_")}
    # What Graph builds its plans and schedules with: integers of the graph alone (tests/test_graph*.py).
    # And what a layer has done behind a sum where no gradient is wanted (tests/test_nn_layers.py).
    apart = {"_aggregate_plan", "_graph_labels", "_neighbor_affine"}
    internal -= apart
    registered -= apart
    assert {name[1:].removesuffix("_") for name in internal} <= set(OPS)
    assert registered - internal == set(OPS)


@each_op
def test_opcheck(name, op, device):
    overload = getattr(torch.ops.gpuprims, name).default
    for sample in op.samples(device):
        torch.library.opcheck(overload, sample)


@each_call
def test_gradcheck(op, call, device):
    holds(op, call, "gradcheck")
    tensors = [t.requires_grad_() for t in call.tensors(6, device, torch.float64)]
    assert torch.autograd.gradcheck(bound(call, 6, device), tensors)


@each_call
def test_gradgradcheck(op, call, device):
    holds(op, call, "gradgradcheck")
    tensors = [t.requires_grad_() for t in call.tensors(5, device, torch.float64)]
    assert torch.autograd.gradgradcheck(bound(call, 5, device), tensors)


@each_call
def test_compile_without_recompiles(op, call, device):
    holds(op, call, "compile")
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call.run, fullgraph=True, dynamic=True, backend=counter)
    for n in SIZES:
        same(compiled(*arguments(call, n, device)), call.run(*arguments(call, n, device)))
    assert counter.frame_count == 1
    for n in SIZES:
        tensors, rest = call.tensors(n, device, torch.float32), call.rest(n, device)
        same(gradients(compiled, tensors, rest), gradients(call.run, tensors, rest))
    assert counter.frame_count == 2  # once more for inputs that require gradients


@each_op
def test_compile_with_inductor(name, op, device):
    if shutil.which("g++") is None:
        pytest.skip("Inductor needs a C++ compiler")
    torch._dynamo.reset()
    call = next(iter(op.calls.values()))
    compiled = torch.compile(call.run, fullgraph=True, dynamic=True)
    same(compiled(*arguments(call, 7, device)), call.run(*arguments(call, 7, device)))


@each_call
def test_export(op, call, device):
    holds(op, call, "export")

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return call.run(*args)

    first, second = arguments(call, 7, device), arguments(call, 13, device)
    shapes = torch.export.AdditionalInputs()
    shapes.add(second)
    program = torch.export.export(Module(), first, dynamic_shapes=shapes)
    for args in (first, second):
        same(program.module()(*args), call.run(*args))


@each_call
def test_vmap_is_a_loop(op, call, device):
    holds(op, call, "vmap")
    n = 7
    rest = call.rest(n, device)
    singles = [tuple(t + shift for t in call.tensors(n, device, torch.float32)) for shift in (0.0, 0.5, -1.0)]
    stacked = [torch.stack(column) for column in zip(*singles, strict=True)]
    looped = [torch.stack(o) for o in zip(*(outputs(call.run(*s, *rest)) for s in singles), strict=True)]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(outputs(call.run(*tensors, *rest)))

    same(torch.vmap(run)(*stacked), looped)
    last = [t.movedim(0, -1) for t in stacked]
    same(torch.vmap(run, in_dims=-1)(*last), looped)
    same(torch.vmap(torch.vmap(run))(*(t[None] for t in stacked)), [o[None] for o in looped])
    if len(stacked) > 1:  # the first batched, the others shared
        shared = torch.vmap(run, in_dims=(0, *[None] * (len(stacked) - 1)))(stacked[0], *singles[0][1:])
        expected = [outputs(call.run(s[0], *singles[0][1:], *rest)) for s in singles]
        same(shared, [torch.stack(o) for o in zip(*expected, strict=True)])


@each_call
def test_func_grad(op, call, device):
    holds(op, call, "func_grad")
    tensors, rest = call.tensors(7, device, torch.float32), call.rest(7, device)

    def loss(*args: torch.Tensor) -> torch.Tensor:
        return sum(out.sin().sum() for out in floats(call.run(*args, *rest)))

    everything = tuple(range(len(tensors)))
    same(torch.func.grad(loss, argnums=everything)(*tensors), gradients(call.run, tensors, rest))


@each_call
def test_autocast_keeps_dtype(op, call, device):
    for dtype in (torch.float32, torch.float16, torch.float64):
        args = arguments(call, 7, device, dtype)
        expected = call.run(*args)
        with torch.autocast(device, torch.bfloat16):
            same(call.run(*args), expected)


@each_call
def test_same_bits_on_every_run(op, call, device):
    args = arguments(call, LARGE, device)
    expected = call.run(*args)
    same(call.run(*args), expected)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            same(call.run(*args), expected)
    finally:
        torch.set_num_threads(threads)


@each_op
def test_empty(name, op, device):
    for run, shape in op.empties(device):
        assert outputs(run())[0].shape == shape


@each_op
def test_zero_dim(name, op, device):
    """The table lists a 0-d call, which test_empty makes, or says why there is none."""
    holds(op, None, "zero_dim")
    assert () in [shape for _, shape in op.empties(device)]


@each_call
def test_strided_input(op, call, device):
    tensors, rest = call.tensors(7, device, torch.float32), call.rest(7, device)
    expected = call.run(*tensors, *rest)

    def every_second(t: torch.Tensor) -> torch.Tensor:  # with an odd storage offset
        wide = t.new_full((*t.shape[:-1], 2 * t.shape[-1] + 1), torch.nan)
        wide[..., 1::2] = t
        return wide[..., 1::2]

    same(call.run(*map(every_second, tensors), *rest), expected)
    same(call.run(*(t.mT.contiguous().mT if t.dim() > 1 else t for t in tensors), *rest), expected)


@pytest.mark.slow
@each_op
def test_more_than_2_31_elements(name, op, device):
    holds(op, None, "huge")
    op.huge(device, op.one_byte if device == "cpu" else torch.float32)


@each_op
def test_messages(name, op, device):
    """The same words from the kernel of this device and from the fake kernel."""
    overload = getattr(torch.ops.gpuprims, name)
    for message, make in op.errors:
        with pytest.raises(RuntimeError) as real:
            overload(*make(device))
        assert str(real.value) == message
        args = make(device)
        with FakeTensorMode() as mode, pytest.raises(RuntimeError) as fake:
            overload(*tree_map_only(torch.Tensor, mode.from_tensor, args))
        assert str(fake.value) == message


# CUDA alone -------------------------------------------------------------------------------------------------

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@on_cuda
@pytest.mark.gpu
@each_call
def test_graph_replays(op, call):
    """Three replays of a CUDA graph, each with new data in the captured buffers."""
    holds(op, call, "graph")
    for n in (7, LARGE):
        static, rest = call.tensors(n, "cuda", torch.float32), call.rest(n, "cuda")
        fresh = [tuple((t * f).clone() for t in static) for f in (-1.0, 0.5, 3.0)]
        call.run(*static, *rest)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call.run(*static, *rest)
        for tensors in fresh:
            for buffer, new in zip(static, tensors, strict=True):
                buffer.copy_(new)
            graph.replay()
            same(captured, call.run(*tensors, *rest))


@on_cuda
@pytest.mark.gpu
@each_call
def test_current_stream(op, call):
    """Input that a side stream is still busy writing: an op on another stream would read the old data."""
    tensors, rest = call.tensors(LARGE, "cuda", torch.float32), call.rest(LARGE, "cuda")
    expected = call.run(*tensors, *rest)
    late = [torch.zeros_like(t) for t in tensors]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        for buffer, t in zip(late, tensors, strict=True):
            buffer.copy_(t)
        actual = call.run(*late, *rest)
    torch.cuda.synchronize()
    same(actual, expected)


@on_cuda
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
@each_call
def test_second_device(op, call):
    result = call.run(*arguments(call, LARGE, "cuda:1"))
    assert torch.cuda.current_device() == 0
    assert {str(out.device) for out in outputs(result)} == {"cuda:1"}
    same(result, call.run(*arguments(call, LARGE, "cuda:0")))


@on_cuda
@pytest.mark.gpu
@each_call
def test_cuda_agrees_with_cpu(op, call):
    for n in (*SIZES, LARGE):
        cpu, cuda = (outputs(call.run(*arguments(call, n, device))) for device in ("cpu", "cuda"))
        for a, e in zip(cuda, cpu, strict=True):
            torch.testing.assert_close(a.cpu(), e)
