"""Graphs and tolerances that the tests of aggregation share."""

import torch

from torch_gpuprims import Graph

raw = torch.ops.gpuprims
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]  # for Hypothesis: no fixture in @given
#: Relative to the sum of magnitudes; up to 1023 edges are added in a row: 1023 * 2^-24 = 6.1e-5 at worst.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 6.2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
FEATURES = (1, 3, 7, 16, 64, 100, 130)


def random_csr(degrees, num_src, generator):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.randint(num_src, (int(indptr[-1]),), generator=generator)


def random_graph(nodes, edges, device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Graph.from_coo(torch.randint(nodes, (2, edges), generator=generator), nodes).to(device)
