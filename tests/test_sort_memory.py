"""What the sorts ask of memory and of threads."""

import os
import subprocess
import sys

import pytest
import torch

from torch_gpuprims import argsort, segment_sort, sort, sort_by_key, sort_keys

HUGE = 2**50
CALLS = {
    "sort": sort,
    "sort in dim 0": lambda x: sort(x[:, None].expand(-1, 2), 0),
    "sort of a view": lambda x: sort(x.view(2, -1).mT, 1),
    "argsort": argsort,
    "sort_keys": sort_keys,
    "sort_keys, the larger first": lambda x: sort_keys(x, 0, True),
    "sort_by_key": sort_by_key,
    "segment_sort": lambda x: segment_sort(x, torch.zeros(3, dtype=torch.int64, device=x.device)),
}


@pytest.mark.parametrize("name", CALLS)
def test_out_of_memory(name, device):
    """Also where it ends for the copy of a strided input."""
    x = torch.zeros(1, device=device).expand(HUGE)
    size = 4 * HUGE * (2 if "dim 0" in name else 1)
    with pytest.raises(torch.OutOfMemoryError) as error:
        CALLS[name](x)
    assert str(error.value) == f"{name.split()[0].rstrip(',')}: out of memory allocating {size} bytes"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the times of threads where Linux has them")
def test_a_long_segment_is_for_all_threads():
    """However many others there are."""
    code = """if True:
        import glob, torch, torch_gpuprims as g
        def times():
            paths = glob.glob("/proc/self/task/*/stat")  # 1/100 s in user mode
            return {path: int(open(path).read().rsplit(")", 1)[1].split()[11]) for path in paths}
        torch.set_num_threads(2)
        n, empty = 1 << 23, 999
        x = torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int32)
        expected, indptr = x.sort(stable=True), torch.tensor([0] * empty + [n])
        g.segment_sort(x[:1 << 18], torch.tensor([0, 1 << 18]))  # starts the threads
        before = times()
        keys, indices, _ = g.segment_sort(x, indptr)
        used = sorted((at - before[path] for path, at in times().items() if path in before), reverse=True)
        assert torch.equal(keys, expected.values) and torch.equal(indices, expected.indices)
        assert used[1] > used[0] / 4, used
        print("sorted")"""
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "sorted", done.stderr
