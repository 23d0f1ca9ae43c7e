// pack_rows, unpack_rows and gather_packed from what a device brings: a Guard that makes it
// current, and move(op, args, out, promises), which looks at the data where it must, and fills out.
#pragma once
#include "reorder/tensors.h"

namespace gpuprims::reorder {

// The widest word that divides a slot and the places of both ends.
inline int pick_word(int64_t slot_bytes, const void* a, const void* b) {
  const uint64_t bits = static_cast<uint64_t>(slot_bytes) | reinterpret_cast<uint64_t>(a) |
                        reinterpret_cast<uint64_t>(b);
  for (int word = 16; word > 1; word /= 2)
    if (bits % word == 0) return word;
  return 1;
}

inline MoveArgs move_args(Move move, const Tensor& from, const MaybeTensor& fill, Tensor& out) {
  MoveArgs args;
  args.move = move;
  args.from = from.const_data_ptr();
  args.to = out.mutable_data_ptr();
  if (fill) args.fill = fill->const_data_ptr();
  args.element = static_cast<int>(element_bytes(from.scalar_type()));
  const int64_t bytes = args.element * features_of(from);
  args.word = pick_word(bytes, args.from, args.to);
  args.words = bytes / args.word;
  args.bad = bad_bits(from.scalar_type());
  return args;
}

template <class Device>
void move_rows(const char* op, Move move, const Tensor& from_in, const PackingTensors& p,
               const MaybeTensor& fill, int64_t promises, Tensor& out) {
  const Tensor from = dense(from_in);
  MoveArgs args = move_args(move, from, fill, out);
  args.p = p.at;
  Device::move(op, args, out, promises);
}

template <class Device>
Tensor pack_rows(const Tensor& values, const Tensor& indptr, const MaybeTensor& slices,
                 const MaybeTensor& order, const MaybeTensor& units, int64_t slots,
                 const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_packing(op, values, "values", indptr, slices, order, units, slots);
  check_fill(op, fill, values);
  const typename Device::Guard guard(values.get_device_index());
  const PackingTensors p(indptr, slices, order, units, slots, values.size(0), promises);
  Tensor out = rows_like(op, values, slots);
  move_rows<Device>(op, Move::pack, values, p, fill, promises, out);
  return out;
}

template <class Device>
void pack_rows_into(Tensor out, const Tensor& values, const Tensor& indptr,
                    const MaybeTensor& slices, const MaybeTensor& order, const MaybeTensor& units,
                    const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_out(op, out, values);
  check_packing(op, values, "values", indptr, slices, order, units, out.size(0));
  check_fill(op, fill, values);
  const typename Device::Guard guard(values.get_device_index());
  const PackingTensors p(indptr, slices, order, units, out.size(0), values.size(0), promises);
  move_rows<Device>(op, Move::pack, values, p, fill, promises, out);
}

template <class Device>
Tensor unpack_rows(const Tensor& packed, const Tensor& indptr, const MaybeTensor& slices,
                   const MaybeTensor& order, const MaybeTensor& units, int64_t entries,
                   int64_t promises) {
  constexpr auto op = "unpack_rows";
  check_rows_of(op, "packed", packed);
  check_packing(op, packed, "packed", indptr, slices, order, units, packed.size(0));
  check(entries >= 0, op, ": entries must not be negative, got ", entries);
  const typename Device::Guard guard(packed.get_device_index());
  const PackingTensors p(indptr, slices, order, units, packed.size(0), entries, promises);
  Tensor out = rows_like(op, packed, entries);
  move_rows<Device>(op, Move::unpack, packed, p, {}, promises, out);
  return out;
}

// An index says by itself what it reads: nothing is to be looked at before.
template <class Device>
void gather(const char* op, const Tensor& values_in, const Tensor& index_in,
            const MaybeTensor& fill, Tensor& out) {
  const Tensor values = dense(values_in), index = dense(index_in);
  MoveArgs args = move_args(Move::gather, values, fill, out);
  args.index = index.const_data_ptr();
  args.wide_index = index.scalar_type() == ScalarType::Long;
  args.count = index.size(0);
  args.source_rows = values.size(0);
  Device::move(op, args, out, kChecked);
}

template <class Device>
Tensor gather_packed(const Tensor& values, const Tensor& index, const MaybeTensor& fill,
                     const MaybeTensor& t_indptr, const MaybeTensor& t_order) {
  constexpr auto op = "gather_packed";
  check_gather(op, values, index, fill);
  const typename Device::Guard guard(values.get_device_index());
  Tensor out = rows_like(op, values, index.size(0));
  gather<Device>(op, values, index, fill, out);
  return out;
}

template <class Device>
void gather_packed_into(Tensor out, const Tensor& values, const Tensor& index,
                        const MaybeTensor& fill) {
  constexpr auto op = "gather_packed";
  check_gather(op, values, index, fill);
  check_out(op, out, values);
  check(out.size(0) == index.size(0), op, ": out must have ", index.size(0), " rows, got ",
        out.size(0));
  const typename Device::Guard guard(values.get_device_index());
  gather<Device>(op, values, index, fill, out);
}

template <class Device, class Library>
void register_moves(Library& m) {
  m.impl("pack_rows", TORCH_BOX(&pack_rows<Device>));
  m.impl("_pack_rows", TORCH_BOX(&pack_rows_into<Device>));
  m.impl("unpack_rows", TORCH_BOX(&unpack_rows<Device>));
  m.impl("gather_packed", TORCH_BOX(&gather_packed<Device>));
  m.impl("_gather_packed", TORCH_BOX(&gather_packed_into<Device>));
}

}  // namespace gpuprims::reorder
