// An input as two groups of extents, kept and reduced, each with as few extents as its strides
// allow.
#pragma once
#include <algorithm>
#include <cstdint>

namespace gpuprims {

constexpr int kMaxExtents = 10;  // more are copied into a contiguous tensor first

// Innermost first.
struct ReduceLayout {
  int kept_dims = 0, reduced_dims = 0;
  int64_t columns = 1;  // results
  int64_t n = 1;        // elements of each
  int64_t kept_size[kMaxExtents] = {}, kept_step[kMaxExtents] = {}, kept_out[kMaxExtents] = {};
  int64_t reduced_size[kMaxExtents] = {}, reduced_step[kMaxExtents] = {};

  bool contiguous() const { return n <= 1 || (reduced_dims == 1 && reduced_step[0] == 1); }
};

namespace reduce_detail {

struct Extent {
  int64_t size, step, out;
};

// Merges neighbours that one stride describes; `extents` come innermost first.
inline int merge_extents(Extent* extents, int count) {
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    if (extents[i].size == 1) continue;
    Extent* const last = kept > 0 ? &extents[kept - 1] : nullptr;
    if (last && extents[i].step == last->step * last->size &&
        extents[i].out == last->out * last->size)
      last->size *= extents[i].size;
    else
      extents[kept++] = extents[i];
  }
  return kept;
}

}  // namespace reduce_detail

// Positions count the reduced elements in the order of memory (the larger stride is the outer one),
// so that dense data gives the same sum however its dimensions are named; in the order of indices
// where `in_order`, for argmax. False where there are too many extents.
inline bool make_layout(const int64_t* sizes, const int64_t* strides, int64_t rank,
                        const bool* reduced, bool in_order, ReduceLayout& layout) {
  using reduce_detail::Extent;
  Extent kept[64], gone[64];
  int kept_count = 0, gone_count = 0;
  int64_t out = 1;
  layout.columns = layout.n = 1;
  for (int64_t d = rank - 1; d >= 0; --d) {
    if (reduced[d]) {
      layout.n *= sizes[d];
      gone[gone_count++] = {sizes[d], strides[d], 0};
    } else {
      layout.columns *= sizes[d];
      kept[kept_count++] = {sizes[d], strides[d], out};
      out *= sizes[d];
    }
  }
  const auto inner = [](const Extent& a, const Extent& b) { return a.step < b.step; };
  const auto sort = [&](Extent* first, int count) {  // insertion: stable, no allocation
    for (int i = 1; i < count; ++i)
      for (int j = i; j > 0 && inner(first[j], first[j - 1]); --j)
        std::swap(first[j], first[j - 1]);
  };
  if (!in_order) sort(gone, gone_count);
  kept_count = reduce_detail::merge_extents(kept, kept_count);
  sort(kept, kept_count);
  kept_count = reduce_detail::merge_extents(kept, kept_count);
  gone_count = reduce_detail::merge_extents(gone, gone_count);
  if (kept_count > kMaxExtents || gone_count > kMaxExtents) return false;
  layout.kept_dims = kept_count, layout.reduced_dims = gone_count;
  for (int i = 0; i < kept_count; ++i) {
    layout.kept_size[i] = kept[i].size;
    layout.kept_step[i] = kept[i].step;
    layout.kept_out[i] = kept[i].out;
  }
  for (int i = 0; i < gone_count; ++i) {
    layout.reduced_size[i] = gone[i].size;
    layout.reduced_step[i] = gone[i].step;
  }
  return true;
}

}  // namespace gpuprims
