// spmv and spmv_csr from what a device brings: a Guard that makes it current, the most columns of
// x, and spmv and spmv_csr(op, args, out, promises), which look at the data where they must, and
// fill out.
#pragma once
#include "reorder/tensors.h"

namespace gpuprims::reorder {

// Operands and their arguments.
struct Product {
  Product(const char* op, const Tensor& v, const Tensor& i, const Tensor& operand, int64_t rows)
      : values(dense(v)), indices(dense(i)), x(dense(operand)), out(rows_like(op, x, rows)) {
    args.dtype = dtype_of(op, values.scalar_type());
    args.values = values.const_data_ptr();
    args.indices = indices.const_data_ptr();
    args.wide_indices = indices.scalar_type() == ScalarType::Long;
    args.x = x.const_data_ptr();
    args.columns = x.size(0);
    args.m = features_of(x);
    args.out = out.mutable_data_ptr();
  }
  Tensor values, indices, x, out;
  SpmvArgs args;
};

template <class Device>
void check_columns(const char* op, const Tensor& x) {
  const int64_t m = features_of(x);
  check(m <= Device::kMostColumns, op, ": x must have at most ", Device::kMostColumns,
        " columns, got ", m);
}

template <class Device>
Tensor spmv(const Tensor& values, const Tensor& indices, const Tensor& indptr,
            const MaybeTensor& slices, const MaybeTensor& order, const MaybeTensor& units,
            const Tensor& x, const MaybeTensor& start_in, const MaybeTensor& t_indptr,
            const MaybeTensor& t_indices, const MaybeTensor& t_ids, int64_t promises) {
  constexpr auto op = "spmv";
  check_spmv(values, indices, indptr, slices, order, units, x, start_in);
  check_columns<Device>(op, x);
  const typename Device::Guard guard(values.get_device_index());
  const PackingTensors p(indptr, slices, order, units, values.size(0), 0, promises);
  const MaybeTensor start = dense(start_in);
  Product product(op, values, indices, x, p.at.rows);
  product.args.p = p.at;
  if (start) product.args.start = start->const_data_ptr();
  Device::spmv(op, product.args, product.out, promises);
  return product.out;
}

template <class Device>
Tensor spmv_csr(const Tensor& indptr, const Tensor& indices, const Tensor& values, const Tensor& x,
                int64_t promises) {
  constexpr auto op = "spmv_csr";
  check_spmv_csr(indptr, indices, values, x);
  check_columns<Device>(op, x);
  const typename Device::Guard guard(values.get_device_index());
  const PackingTensors p(indptr, {}, {}, {}, 0, values.size(0), promises);
  Product product(op, values, indices, x, p.at.rows);
  product.args.p = p.at;
  product.args.p.longest = values.size(0);  // no row is too long
  Device::spmv_csr(op, product.args, product.out, promises);
  return product.out;
}

template <class Device, class Library>
void register_products(Library& m) {
  m.impl("spmv", TORCH_BOX(&spmv<Device>));
  m.impl("spmv_csr", TORCH_BOX(&spmv_csr<Device>));
}

}  // namespace gpuprims::reorder
