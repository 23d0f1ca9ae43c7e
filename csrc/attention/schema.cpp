#include "common/stable.h"

// The graph is a CSR matrix by destination as in csrc/aggregate/schema.cpp: row d lists the edges
// that end in d, indices[e] is where edge e starts, edge_ids[e] its place in per-edge tensors;
// t_* are the same graph by source. H heads of C channels.
//   raw[e, h] = a_src[source, h] + a_dst[destination, h] + a_edge[id, h], absent terms being 0
//   alpha = softmax of leaky_relu(raw, negative_slope) over the edges of a row
//   dropout: an alpha is dropped by a hash of (seed, id * H + h); seed is an int64 of one element
//   promises: 1 offsets and ids were validated, 2 no row is a hub (plan.h), 4 no row of the
//   transpose is one.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  // out[d, h] = sum over the edges e of row d of alpha[e, h] * x[indices[e], h], plus bias[h],
  // which is [H, C]; lse: the logarithm of the softmax's denominator, -inf for an empty row;
  // positive, where it is wanted: the part of out with positive scores [rows, H, C] and then its
  // share of the softmax [rows, H], flat, in the accumulator's type, for the gradient in a_dst. It
  // has no gradient
  m.def(
      "neighbor_attention(Tensor x, Tensor? a_src, Tensor? a_dst, Tensor? a_edge, Tensor? seed, "
      "Tensor indptr, Tensor indices, Tensor? edge_ids=None, Tensor? t_indptr=None, Tensor? "
      "t_indices=None, Tensor? t_edge_ids=None, float negative_slope=0.2, float dropout=0.0, int "
      "promises=0, bool want_positive=False, Tensor? bias=None) -> (Tensor out, Tensor lse, Tensor "
      "positive)");
  // The gradients in x, a_src, a_dst and a_edge (that in bias is a sum of grad); wanted: bit i for
  // the i-th of them, those unwanted have no elements
  m.def(
      "neighbor_attention_grad(Tensor grad, Tensor? grad_lse, Tensor out, Tensor lse, Tensor x, "
      "Tensor? a_src, Tensor? a_dst, Tensor? a_edge, Tensor? seed, Tensor indptr, Tensor indices, "
      "Tensor? edge_ids=None, Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? "
      "t_edge_ids=None, float negative_slope=0.2, float dropout=0.0, int promises=0, int "
      "wanted=15, Tensor? positive=None, Tensor? bias=None) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  // Softmax of scores [edges, H] over the edges of each row
  m.def(
      "edge_softmax(Tensor scores, Tensor indptr, Tensor? edge_ids=None, int promises=0) -> "
      "Tensor");
  // alpha * (grad - the row's sum of alpha * grad)
  m.def(
      "edge_softmax_grad(Tensor grad, Tensor alpha, Tensor indptr, Tensor? edge_ids=None, int "
      "promises=0) -> Tensor");
  // scores[id, h] = <att[h], leaky_relu(x_src[source, h] + x_dst[destination, h] + edge[id, h])>
  m.def(
      "gatv2_score(Tensor x_src, Tensor x_dst, Tensor att, Tensor? edge, Tensor indptr, Tensor "
      "indices, Tensor? edge_ids=None, Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? "
      "t_edge_ids=None, float negative_slope=0.2, int promises=0) -> Tensor");
  // The gradients in x_src, x_dst, att (one matrix a destination: their sum is the gradient) and
  // edge; wanted as above
  m.def(
      "gatv2_score_grad(Tensor grad, Tensor x_src, Tensor x_dst, Tensor att, Tensor? edge, Tensor "
      "indptr, Tensor indices, Tensor? edge_ids=None, Tensor? t_indptr=None, Tensor? "
      "t_indices=None, Tensor? t_edge_ids=None, float negative_slope=0.2, int promises=0, int "
      "wanted=15) -> (Tensor, Tensor, Tensor, Tensor)");
}
