"""The six synthetic graphs of targets.json, exactly as the rivals were timed on them.

    indptr, indices = make("sbm", device="cuda")      # int64, CSR by destination, sorted columns
    python -m bench.graphs                            # sizes of all six at 1/1000 of the size, on the CPU

Fixed seeds; the bits depend on PyTorch's random generator of the device: compare sizes, not hashes, across
devices. Undirected: both directions are there. No self-loops, no duplicates. small=True divides sizes by
1,000.
"""

import torch

NAMES = ("rmat", "uniform", "sbm", "grid", "products", "reddit")
SEED = 1


def _gen(device, seed):
    g = torch.Generator(device=device)
    g.manual_seed(seed)
    return g


def _rand(n, g, device, dtype=torch.float32):
    return torch.rand(n, generator=g, device=device, dtype=dtype)


def _rmat(scale, pairs, seed, device, probs=(0.57, 0.19, 0.19)):
    g = _gen(device, seed)
    a, b, c = probs
    u = torch.zeros(pairs, dtype=torch.int64, device=device)
    v = torch.zeros(pairs, dtype=torch.int64, device=device)
    for _ in range(scale):
        r = _rand(pairs, g, device)
        u = u * 2 + (r >= a + b).long()
        v = v * 2 + (((r >= a) & (r < a + b)) | (r >= a + b + c)).long()
    perm = torch.randperm(1 << scale, generator=g, device=device)
    return perm[u], perm[v]


def _community_bounds(n, mean_size, g, device):
    w = torch.exp(torch.randn(max(2, n // mean_size), generator=g, device=device) * 0.7).double()
    cuts = torch.unique(torch.round(torch.cumsum(w / w.sum(), 0) * n).long().clamp_(1, n))
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return torch.cat([zero, cuts[cuts < n], torch.tensor([n], device=device)])


def _community_graph(n, pairs, mean_size, p_in, weights, seed, device):
    """Degree-weighted edges, a share p_in of them inside a community (contiguous ids)."""
    g = _gen(device, seed)
    bounds = _community_bounds(n, mean_size, g, device)
    cw = torch.cat([torch.zeros(1, dtype=torch.float64, device=device), torch.cumsum(weights.double(), 0)])
    total = cw[-1]
    u = (torch.searchsorted(cw, _rand(pairs, g, device, torch.float64) * total) - 1).clamp_(0, n - 1)
    comm = torch.searchsorted(bounds, u, right=True) - 1
    lo, hi = cw[bounds[comm]], cw[bounds[comm + 1]]
    inside = _rand(pairs, g, device) < p_in
    r = _rand(pairs, g, device, torch.float64)
    v = (torch.searchsorted(cw, torch.where(inside, lo + r * (hi - lo), r * total)) - 1).clamp_(0, n - 1)
    return u, v


def _csr(u, v, n, device, relabel_seed=None):
    if relabel_seed is not None:
        perm = torch.randperm(n, generator=_gen(device, relabel_seed), device=device)
        u, v = perm[u], perm[v]
    keep = u != v
    u, v = u[keep], v[keep]
    key = torch.unique(torch.cat([u * n + v, v * n + u]))
    dst, src = key // n, key % n
    indptr = torch.zeros(n + 1, dtype=torch.int64, device=device)
    indptr[1:] = torch.cumsum(torch.bincount(dst, minlength=n), 0)
    return indptr, src


def make(name, device="cuda", small=False, natural_order=False):
    """(indptr [n+1], indices [E]) of a graph of NAMES.

    natural_order keeps the planted order of sbm, products and reddit.
    """
    k = 1000 if small else 1
    shuffle = None if natural_order else SEED + 9
    if name == "rmat":
        scale = 10 if small else 20
        u, v = _rmat(scale, 15_000_000 // k, SEED, device)
        return _csr(u, v, 1 << scale, device)
    if name == "uniform":
        n, g = 1_000_000 // k, _gen(device, SEED + 1)
        u = torch.randint(n, (15_000_000 // k,), generator=g, device=device)
        v = torch.randint(n, (15_000_000 // k,), generator=g, device=device)
        return _csr(u, v, n, device)
    if name == "sbm":
        n = 1_000_000 // k
        u, v = _community_graph(
            n, 15_000_000 // k, 100 if small else 512, 0.9, torch.ones(n, device=device), SEED + 2, device
        )
        return _csr(u, v, n, device, shuffle)
    if name == "products":
        n = 2_450_000 // k
        w = _rand(n, _gen(device, SEED + 3), device).clamp_(min=1e-6).pow(-0.5).clamp_(max=350)
        u, v = _community_graph(n, 62_000_000 // k, 100 if small else 1000, 0.7, w, SEED + 3, device)
        return _csr(u, v, n, device, shuffle)
    if name == "reddit":
        n = 233_000 // k
        w = torch.exp(torch.randn(n, generator=_gen(device, SEED + 4), device=device) * 1.2).clamp_(max=40)
        u, v = _community_graph(
            n, 57_500_000 // (10 * k if small else 1), 50 if small else 5600, 0.75, w, SEED + 4, device
        )
        return _csr(u, v, n, device, shuffle)
    if name == "grid":
        side = 60 if small else 2000
        idx = torch.arange(side * side, device=device).view(side, side)
        u = torch.cat([idx[:, :-1].reshape(-1), idx[:-1].reshape(-1)])
        v = torch.cat([idx[:, 1:].reshape(-1), idx[1:].reshape(-1)])
        return _csr(u, v, side * side, device)
    raise ValueError(f"no graph named {name!r}; there are {', '.join(NAMES)}")


if __name__ == "__main__":
    for graph in NAMES:
        ptr, col = make(graph, device="cpu", small=True)
        deg = ptr[1:] - ptr[:-1]
        sizes = f"nodes {deg.numel():7d} edges {col.numel():8d} degree mean {deg.float().mean():.1f}"
        print(f"{graph:9s} {sizes} max {int(deg.max())} empty {int((deg == 0).sum())}")
