"""Cache hits and DRAM bytes of a neighbour sum, as given and in community order, by Nsight Compute.

    ncu --profile-from-start off --metrics $(python -m bench.aggregate_caches --metrics) \
        python -m bench.aggregate_caches [--graphs sbm products] [--features 64]

Each sum runs once between profiler marks, after a line that names it; where there are hubs it is two kernels.
"""

import argparse

import torch

from bench import graphs
from torch_gpuprims import Graph, neighbor_aggregate

METRICS = (
    "gpu__time_duration.sum", "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct",
    "dram__bytes_read.sum", "dram__bytes_write.sum",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--metrics", action="store_true", help="print them for ncu")
    parser.add_argument("--graphs", nargs="*", default=["sbm", "products"], choices=graphs.NAMES)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    if options.metrics:
        print(",".join(METRICS))
        return
    for name in options.graphs:
        indptr, indices = graphs.make(name, "cuda")
        graph = Graph.from_csr(indptr, indices.int(), num_src=len(indptr) - 1)
        x = torch.randn(graph.num_src, options.features, device="cuda").to(getattr(torch, options.dtype))
        for ordered in (graph, graph.reorder("community")):
            neighbor_aggregate(x, ordered)  # its plan
            torch.cuda.synchronize()
            print(f"{name}, {options.features} features of {options.dtype}, {ordered.schedule}", flush=True)
            torch.cuda.profiler.start()
            neighbor_aggregate(x, ordered)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
