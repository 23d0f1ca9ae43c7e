// Which inputs the aggregation ops take, in the words that CPU, CUDA and the fakes share
// (torch_gpuprims/aggregate_fake.py).
#pragma once
#include <optional>

#include "aggregate/csr.h"
#include "aggregate/plan.h"
#include "common/bad_data.h"
#include "common/stable.h"

namespace gpuprims {

using MaybeTensor = std::optional<Tensor>;

// Bits of `promises`.
constexpr int64_t kChecked = 1;
constexpr int64_t kNoHubs = 2;
constexpr int64_t kNoLongRows = 8;

inline void check_features(const char* op, const char* name, const Tensor& x) {
  check(is_strided(x), op, ": ", name, " must be a dense tensor, got a sparse layout");
  const auto t = x.scalar_type();
  check(t == ScalarType::Half || t == ScalarType::BFloat16 || t == ScalarType::Float ||
            t == ScalarType::Double,
        op, ": ", name, " must be float16, bfloat16, float32 or float64, got ",
        scalar_type_name(t));
  check(x.dim() == 2, op, ": ", name, " must have 2 dimensions [rows, features], got ", x.dim());
}

inline void check_vector(const char* op, const char* name, const Tensor& t, const Tensor& x,
                         const char* x_name) {
  check(t.dim() == 1, op, ": ", name, " must have 1 dimension, got ", t.dim());
  check(t.scalar_type() == ScalarType::Int || t.scalar_type() == ScalarType::Long, op, ": ", name,
        " must be int32 or int64, got ", scalar_type_name(t.scalar_type()));
  check(same_device(t, x), op, ": ", name, " must be on the device of ", x_name);
}

inline void check_ids(const char* op, const char* name, const Tensor& ids, const Tensor& indptr,
                      int64_t edges, const Tensor& x, const char* x_name) {
  check_vector(op, name, ids, x, x_name);
  check(ids.scalar_type() == indptr.scalar_type(), op, ": ", name,
        " must have the dtype of indptr (", scalar_type_name(indptr.scalar_type()), "), got ",
        scalar_type_name(ids.scalar_type()));
  check(ids.size(0) == edges, op, ": ", name, " must have ", edges,
        " elements (the number of edges), got ", ids.size(0));
}

// The graph beside a feature matrix `x` whose rows are the graph's sources.
inline void check_graph(const char* op, const char* x_name, const Tensor& x, const Tensor& indptr,
                        const Tensor& indices, const MaybeTensor& edge_ids,
                        const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                        const MaybeTensor& t_edge_ids) {
  check_vector(op, "indptr", indptr, x, x_name);
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  check_vector(op, "indices", indices, x, x_name);
  const int64_t edges = indices.size(0);
  check(edges <= INT32_MAX || indptr.scalar_type() == ScalarType::Long, op,
        ": indptr must be int64 for ", edges, " edges, got int32");
  if (edge_ids) check_ids(op, "edge_ids", *edge_ids, indptr, edges, x, x_name);
  check(t_indptr.has_value() == t_indices.has_value(), op,
        ": t_indptr and t_indices must be given together");
  if (!t_indptr) return;
  check_vector(op, "t_indptr", *t_indptr, x, x_name);
  check_vector(op, "t_indices", *t_indices, x, x_name);
  check(t_indices->size(0) == edges, op, ": t_indices must have ", edges,
        " elements (the number of edges), got ", t_indices->size(0));
  if (t_edge_ids) check_ids(op, "t_edge_ids", *t_edge_ids, indptr, edges, x, x_name);
  check(x.size(0) >= t_indptr->size(0) - 1, op, ": ", x_name, " must have at least ",
        t_indptr->size(0) - 1, " rows (the graph's sources), got ", x.size(0));
}

inline void check_plan(const char* op, const char* name, const MaybeTensor& plan,
                       const Tensor& indptr, const Tensor& indices, const Tensor& x,
                       const char* x_name) {
  if (!plan) return;
  check(plan->dim() == 1, op, ": ", name, " must have 1 dimension, got ", plan->dim());
  check(plan->scalar_type() == ScalarType::Long, op, ": ", name, " must be int64, got ",
        scalar_type_name(plan->scalar_type()));
  check(same_device(*plan, x), op, ": ", name, " must be on the device of ", x_name);
  const int64_t rows = indptr.size(0) - 1, size = plan_layout(rows, indices.size(0)).size;
  check(plan->size(0) == size || plan->size(0) == size + rows, op, ": ", name, " must have ", size,
        " or ", size + rows, " elements, got ", plan->size(0));
}

inline void check_weight(const char* op, const MaybeTensor& weight, int64_t edges, const Tensor& x,
                         const char* x_name) {
  if (!weight) return;
  check(is_strided(*weight), op, ": edge_weight must be a dense tensor, got a sparse layout");
  check(weight->dim() == 1 && weight->size(0) == edges, op, ": edge_weight must have shape [",
        edges, "] (the number of edges), got ", shape_text(weight->sizes()));
  check(weight->scalar_type() == x.scalar_type(), op, ": edge_weight must have the dtype of ",
        x_name, " (", scalar_type_name(x.scalar_type()), "), got ",
        scalar_type_name(weight->scalar_type()));
  check(same_device(*weight, x), op, ": edge_weight must be on the device of ", x_name);
}

inline void check_arg(const char* op, const char* x_name, const Tensor& arg, const Tensor& x,
                      const Tensor& indptr) {
  check(arg.dim() == 2 && arg.size(0) == x.size(0) && arg.size(1) == x.size(1), op,
        ": arg must have the shape of ", x_name, " ", shape_text(x.sizes()), ", got ",
        shape_text(arg.sizes()));
  check(arg.scalar_type() == indptr.scalar_type(), op, ": arg must have the dtype of indptr (",
        scalar_type_name(indptr.scalar_type()), "), got ", scalar_type_name(arg.scalar_type()));
  check(same_device(arg, x), op, ": arg must be on the device of ", x_name);
}

inline void check_aggregate(const Tensor& x, const Tensor& indptr, const Tensor& indices,
                            const MaybeTensor& edge_ids, const MaybeTensor& edge_weight,
                            const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                            const MaybeTensor& t_edge_ids, int64_t reduce) {
  constexpr auto op = "neighbor_aggregate";
  check(reduce >= 0 && reduce <= 3, op,
        ": reduce must be 0 (sum), 1 (mean), 2 (max) or 3 (min), got ", reduce);
  check_features(op, "x", x);
  check_graph(op, "x", x, indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids);
  check_weight(op, edge_weight, indices.size(0), x, "x");
}

inline void check_sddmm(const Tensor& a, const Tensor& b, const Tensor& indptr,
                        const Tensor& indices, const MaybeTensor& edge_ids, const MaybeTensor& arg,
                        const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                        const MaybeTensor& t_edge_ids) {
  check_features("sddmm", "a", a);
  check_features("sddmm", "b", b);
  check(a.scalar_type() == b.scalar_type(), "sddmm: b must have the dtype of a (",
        scalar_type_name(a.scalar_type()), "), got ", scalar_type_name(b.scalar_type()));
  check(same_device(a, b), "sddmm: a must be on the device of b");
  check(a.size(1) == b.size(1), "sddmm: b must have the features of a (", a.size(1), "), got ",
        b.size(1));
  check_graph("sddmm", "b", b, indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids);
  check(a.size(0) == indptr.size(0) - 1, "sddmm: a must have ", indptr.size(0) - 1,
        " rows (the graph's destinations), got ", a.size(0));
  if (arg) check_arg("sddmm", "a", *arg, a, indptr);
}

inline void check_extreme_grad(const Tensor& grad, const Tensor& arg, const Tensor& indptr,
                               const Tensor& indices, const MaybeTensor& edge_ids,
                               const MaybeTensor& edge_weight, const MaybeTensor& t_indptr,
                               const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids) {
  constexpr auto op = "neighbor_extreme_grad";
  check_features(op, "grad", grad);
  check_graph(op, "grad", grad, indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids);
  check_arg(op, "grad", arg, grad, indptr);
  check_weight(op, edge_weight, indices.size(0), grad, "grad");
}

// Tensors that kernels read through plain pointers; kept alive here while the call lasts.
inline Tensor dense(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

inline MaybeTensor dense(const MaybeTensor& t) { return t ? MaybeTensor(dense(*t)) : t; }

// Feature rows may lie apart (any row stride), their columns may not.
inline Tensor dense_rows(const Tensor& x) {
  return x.size(1) <= 1 || x.stride(1) == 1 ? x : torch::stable::contiguous(x);
}

inline const void* pointer(const MaybeTensor& t) { return t ? t->data_ptr() : nullptr; }

struct GraphTensors {
  GraphTensors(const Tensor& p, const Tensor& i, const MaybeTensor& ids, int64_t columns)
      : GraphTensors(p, i, ids, std::nullopt, columns) {}
  GraphTensors(const Tensor& p, const Tensor& i, const MaybeTensor& ids, const MaybeTensor& numbers,
               int64_t columns)
      : indptr(dense(p)), indices(dense(i)), edge_ids(dense(ids)), plan(dense(numbers)) {
    csr = {indptr.data_ptr(),
           indices.data_ptr(),
           pointer(edge_ids),
           indptr.scalar_type() == ScalarType::Long,
           indices.scalar_type() == ScalarType::Long,
           indptr.size(0) - 1,
           columns,
           indices.size(0),
           nullptr};
    if (!plan) return;
    const int64_t at = plan_layout(csr.rows, csr.edges).order;
    if (plan->size(0) > at) csr.order = static_cast<const int64_t*>(plan->data_ptr()) + at;
  }
  Tensor indptr, indices;
  MaybeTensor edge_ids, plan;
  Csr csr;
};

// The words for a flag that the checks of the data raised (kBad* in csr.h).
inline void check_flag(const char* op, int flag, const Csr& csr) {
  check(!(flag & kBadOffsets), op,
        ": indptr must start at 0, not decrease and end at the number of edges (", csr.edges, ")");
  check(!(flag & kBadIndices), op, ": indices must be in [0, ", csr.columns, ")");
  check(!(flag & kBadIds), op, ": edge_ids must be in [0, ", csr.edges, ")");
}

// What _neighbor_affine does to a sum.
inline void check_affine(const Tensor& x, const Tensor& indptr, const Tensor& scale,
                         const MaybeTensor& bias) {
  constexpr auto op = "_neighbor_affine";
  const auto check_one = [&](const char* name, const Tensor& t, int64_t size) {
    check(t.dim() == 1 && t.size(0) == size && t.scalar_type() == x.scalar_type() &&
              same_device(t, x),
          op, ": ", name, " must have ", size, " elements, of the dtype and on the device of x");
  };
  check_one("scale", scale, indptr.size(0) - 1);
  if (bias) check_one("bias", *bias, x.size(1));
}

}  // namespace gpuprims
