#include "common/stable.h"

// A packing is (indptr, slices, order, units); reorder/layout.h says where slots lie. slices is
// absent where the layout is padded: rows x longest slots, of which a row has slots / rows.
//   fill: one element of the dtype of values, for slots that no row fills; absent: zero.
//   promises: 1 indptr, slices, order and units were validated; 2 no row of indptr is longer than
//   256 (spmv_csr).
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  // out[slot (i, p)] = values[indptr[order[p]] + i]; [slots, ...]
  m.def(
      "pack_rows(Tensor values, Tensor indptr, Tensor? slices, Tensor? order, Tensor? units, "
      "SymInt slots, Tensor? fill=None, int promises=0) -> Tensor");
  // The same into memory that is there.
  m.def(
      "_pack_rows(Tensor(a!) out, Tensor values, Tensor indptr, Tensor? slices, Tensor? order, "
      "Tensor? units, Tensor? fill=None, int promises=0) -> ()");
  // The inverse: [entries, ...]
  m.def(
      "unpack_rows(Tensor packed, Tensor indptr, Tensor? slices, Tensor? order, Tensor? units, "
      "SymInt entries, int promises=0) -> Tensor");
  // out[i] = values[index[i]]; -1 gives fill, any other index outside of values NaN (integers: 0).
  // t_indptr, t_order: the positions of index by what they read, for the gradient; kernels never
  // look at them.
  m.def(
      "gather_packed(Tensor values, Tensor index, Tensor? fill=None, Tensor? t_indptr=None, "
      "Tensor? t_order=None) -> Tensor");
  m.def("_gather_packed(Tensor(a!) out, Tensor values, Tensor index, Tensor? fill=None) -> ()");
  // out[row] = start[row] + sum over the slots of row of values[slot] * x[indices[slot]]. Index -1
  // is an empty slot; any other index outside of x makes its row NaN. t_*: the transpose of the
  // entries before packing, by column (its ids are places of values before packing); for gradients.
  m.def(
      "spmv(Tensor values, Tensor indices, Tensor indptr, Tensor? slices, Tensor? order, Tensor? "
      "units, Tensor x, Tensor? start=None, Tensor? t_indptr=None, Tensor? t_indices=None, Tensor? "
      "t_ids=None, int promises=0) -> Tensor");
  // The same from CSR.
  m.def(
      "spmv_csr(Tensor indptr, Tensor indices, Tensor values, Tensor x, int promises=0) -> Tensor");
}
