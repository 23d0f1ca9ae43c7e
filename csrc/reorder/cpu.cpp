// pack_rows, unpack_rows and gather_packed on the CPU: strips, or positions, are dealt to threads.
#include "reorder/cpu_data.h"

namespace gpuprims::reorder {
namespace {

struct Word16 {
  uint64_t low, high;
};

// f(word) with the type whose size is that of a slot, or a char where no type has it.
template <class F>
void with_word(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    case 16:
      return f(Word16{});
    default:
      return f(char{});
  }
}

template <class Word>
void copy_slot(char* to, const char* from, int64_t bytes) {
  if constexpr (std::is_same_v<Word, char>)
    std::memcpy(to, from, bytes);
  else
    std::memcpy(to, from, sizeof(Word));
}

// The slots of one strip, in the order of memory: 32 rows are read side by side. `filler` is a
// slot.
template <class Word, bool kPack>
void strip_slots(const Packing& p, int64_t s, const char* from, char* to, int64_t bytes,
                 const char* filler) {
  const Strip strip = strip_at(p, s);
  const int lanes = static_cast<int>(std::min<int64_t>(kStrip, p.rows - s * kStrip));
  int64_t begin[kStrip], length[kStrip];
  for (int lane = 0; lane < lanes; ++lane) {
    const int64_t row = row_at(p, s * kStrip + lane);
    begin[lane] = int_at(p.indptr, p.wide, row);
    length[lane] = int_at(p.indptr, p.wide, row + 1) - begin[lane];
  }
  const int all = p.slices ? kStrip : lanes;  // the last strip of sliced rows is a whole one
  for (int64_t i = 0; i < strip.width; ++i) {
    const int64_t slot = strip.base + i * strip.stride;
    for (int lane = 0; lane < all; ++lane) {
      const bool there = lane < lanes && i < length[lane];
      if constexpr (kPack)
        copy_slot<Word>(to + (slot + lane) * bytes,
                        there ? from + (begin[lane] + i) * bytes : filler, bytes);
      else if (there)
        copy_slot<Word>(to + (begin[lane] + i) * bytes, from + (slot + lane) * bytes, bytes);
    }
  }
}

template <bool kPack>
void move_slots(const Packing& p, const char* from, char* to, int64_t bytes, const char* filler) {
  const int64_t grain = strips_a_task(p, bytes);
  with_word(bytes, [&](auto word) {
    torch::stable::parallel_for(0, strips_of(p.rows), grain, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        strip_slots<decltype(word), kPack>(p, s, from, to, bytes, filler);
    });
  });
}

// A slot of `features` elements, each the one that fill has, or zero.
std::string filler_of(const MaybeTensor& fill, int64_t element, int64_t features) {
  std::string slot(static_cast<size_t>(element * features), '\0');
  for (int64_t f = 0; fill && f < features; ++f)
    std::memcpy(slot.data() + f * element, fill->const_data_ptr(), static_cast<size_t>(element));
  return slot;
}

void pack(const char* op, const Tensor& values_in, const Packing& p, const MaybeTensor& fill,
          int64_t promises, Tensor& out) {
  const Tensor values = dense(values_in);
  const int64_t element = element_bytes(values.scalar_type()), features = features_of(values);
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  if (!good_data(op, p, true, promises)) {
    fill_bad(to, element, out.numel(), bad_bits(values.scalar_type()));
    return;
  }
  if (out.numel() == 0) return;
  const std::string filler = filler_of(fill, element, features);
  move_slots<true>(p, static_cast<const char*>(values.const_data_ptr()), to, element * features,
                   filler.data());
}

Tensor pack_rows_cpu(const Tensor& values, const Tensor& indptr, const MaybeTensor& slices,
                     const MaybeTensor& order, const MaybeTensor& units, int64_t slots,
                     const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_packing(op, values, "values", indptr, slices, order, units, slots);
  check_fill(op, fill, values);
  const PackingTensors p(indptr, slices, order, units, slots, values.size(0), promises);
  Tensor out = rows_like(op, values, slots);
  pack(op, values, p.at, fill, promises, out);
  return out;
}

void pack_rows_into_cpu(Tensor out, const Tensor& values, const Tensor& indptr,
                        const MaybeTensor& slices, const MaybeTensor& order,
                        const MaybeTensor& units, const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_out(op, out, values);
  check_packing(op, values, "values", indptr, slices, order, units, out.size(0));
  check_fill(op, fill, values);
  const PackingTensors p(indptr, slices, order, units, out.size(0), values.size(0), promises);
  pack(op, values, p.at, fill, promises, out);
}

Tensor unpack_rows_cpu(const Tensor& packed_in, const Tensor& indptr, const MaybeTensor& slices,
                       const MaybeTensor& order, const MaybeTensor& units, int64_t entries,
                       int64_t promises) {
  constexpr auto op = "unpack_rows";
  check_rows_of(op, "packed", packed_in);
  check_packing(op, packed_in, "packed", indptr, slices, order, units, packed_in.size(0));
  check(entries >= 0, op, ": entries must not be negative, got ", entries);
  const Tensor packed = dense(packed_in);
  const PackingTensors p(indptr, slices, order, units, packed.size(0), entries, promises);
  Tensor out = rows_like(op, packed, entries);
  const int64_t element = element_bytes(packed.scalar_type()),
                bytes = element * features_of(packed);
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  if (!good_data(op, p.at, true, promises)) {
    fill_bad(to, element, out.numel(), bad_bits(packed.scalar_type()));
    return out;
  }
  if (out.numel() == 0) return out;
  if (order && !(promises & kChecked))  // rows may repeat
    std::memset(to, 0, static_cast<size_t>(entries * bytes));
  move_slots<false>(p.at, static_cast<const char*>(packed.const_data_ptr()), to, bytes, nullptr);
  return out;
}

void gather(const Tensor& values_in, const Tensor& index_in, const MaybeTensor& fill, Tensor& out) {
  const Tensor values = dense(values_in), index = dense(index_in);
  const int64_t element = element_bytes(values.scalar_type()), features = features_of(values);
  const int64_t bytes = element * features, rows = values.size(0), count = index.size(0);
  if (count == 0 || bytes == 0) return;
  const bool wide = index.scalar_type() == ScalarType::Long;
  const void* const at = index.const_data_ptr();
  const char* const from = static_cast<const char*>(values.const_data_ptr());
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  const std::string filler = filler_of(fill, element, features);
  std::string bad(static_cast<size_t>(bytes), '\0');
  fill_bad(bad.data(), element, features, bad_bits(values.scalar_type()));
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 16) / bytes);
  with_word(bytes, [&](auto word) {
    torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = int_at(at, wide, i);
        const bool inside = j >= 0 && j < rows;
        const char* const other = j == -1 ? filler.data() : bad.data();
        copy_slot<decltype(word)>(to + i * bytes, inside ? from + j * bytes : other, bytes);
      }
    });
  });
}

Tensor gather_packed_cpu(const Tensor& values, const Tensor& index, const MaybeTensor& fill,
                         const MaybeTensor& t_indptr, const MaybeTensor& t_order) {
  check_gather("gather_packed", values, index, fill);
  Tensor out = rows_like("gather_packed", values, index.size(0));
  gather(values, index, fill, out);
  return out;
}

void gather_packed_into_cpu(Tensor out, const Tensor& values, const Tensor& index,
                            const MaybeTensor& fill) {
  constexpr auto op = "gather_packed";
  check_gather(op, values, index, fill);
  check_out(op, out, values);
  check(out.size(0) == index.size(0), op, ": out must have ", index.size(0), " rows, got ",
        out.size(0));
  gather(values, index, fill, out);
}

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("pack_rows", TORCH_BOX(&gpuprims::reorder::pack_rows_cpu));
  m.impl("_pack_rows", TORCH_BOX(&gpuprims::reorder::pack_rows_into_cpu));
  m.impl("unpack_rows", TORCH_BOX(&gpuprims::reorder::unpack_rows_cpu));
  m.impl("gather_packed", TORCH_BOX(&gpuprims::reorder::gather_packed_cpu));
  m.impl("_gather_packed", TORCH_BOX(&gpuprims::reorder::gather_packed_into_cpu));
}
