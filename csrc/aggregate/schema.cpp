#include "common/stable.h"

// A graph is a CSR matrix by destination: row d lists the edges that end in d, and indices[e] is
// where edge e starts. edge_ids[e] is the edge's id, its place in edge_weight and in per-edge
// outputs (absent: e itself). t_indptr, t_indices and t_edge_ids are the same graph by source.
// Kernels never read them; a gradient does.
//   reduce: 0 sum, 1 mean, 2 max, 3 min.
//   arg: the id of the edge that max or min took, -1 for an empty row; no elements unless want_arg.
//   promises: 1 offsets and ids were validated, 2 no row is a hub (plan.h), 4 no row of the
//   transpose is one, 8 no row has kLongDegree edges, 16 no row of the transpose has.
//   plan, t_plan: of the graph and its transpose (plan.h): how rows are dealt to warps and, where
//   it orders them, which row of the output row i of indptr is. Believed where promises has 1.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  // out[d] = reduce over the edges e of row d of edge_weight[e] * x[indices[e]]
  m.def(
      "neighbor_aggregate(Tensor x, Tensor indptr, Tensor indices, Tensor? edge_ids=None, "
      "Tensor? edge_weight=None, Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? "
      "t_edge_ids=None, "
      "int reduce=0, bool want_arg=False, int promises=0, Tensor? plan=None, Tensor? t_plan=None) "
      "-> "
      "(Tensor out, Tensor arg)");
  // The same for calls that need no gradient: autograd falls through it
  // (torch_gpuprims/aggregate.py), and fewer arguments box faster.
  m.def(
      "_neighbor_aggregate(Tensor x, Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? "
      "edge_weight, int reduce, int promises, Tensor? plan) -> Tensor");
  // scale[d] * the sum over the edges e of row d of x[indices[e]] + bias, for calls without
  // gradients
  m.def(
      "_neighbor_affine(Tensor x, Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor scale, "
      "Tensor? bias, int promises, Tensor? plan) -> Tensor");
  // The plan of a graph whose offsets were validated; on CUDA alone (elsewhere nothing reads it).
  m.def("_aggregate_plan(Tensor indptr, int edges) -> Tensor");
  // out[id of e] = <a[row of e], b[indices[e]]>; with arg, over the columns where arg[row of e] is
  // e's id
  m.def(
      "sddmm(Tensor a, Tensor b, Tensor indptr, Tensor indices, Tensor? edge_ids=None, Tensor? "
      "arg=None, "
      "Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? t_edge_ids=None, int promises=0, "
      "Tensor? plan=None, Tensor? t_plan=None) -> Tensor");
  // The gradient of max and min in x. indptr, indices and edge_ids are the transpose of the
  // forward's graph: out[s] = sum over the edges e of row s of edge_weight[e] * grad[indices[e]]
  // where arg[indices[e]] is e's id
  m.def(
      "neighbor_extreme_grad(Tensor grad, Tensor arg, Tensor indptr, Tensor indices, Tensor? "
      "edge_ids=None, "
      "Tensor? edge_weight=None, Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? "
      "t_edge_ids=None, "
      "int promises=0, Tensor? plan=None, Tensor? t_plan=None) -> Tensor");
}
