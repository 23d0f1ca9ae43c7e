// Looks at data on the CPU, and what is written where it is bad.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "reorder/tensors.h"

namespace gpuprims::reorder {

struct NoGuard {  // there is one CPU
  explicit NoGuard(int) {}
};

// Tasks of strips: about 64 KiB of values each.
inline int64_t strips_a_task(const Packing& p, int64_t row_bytes) {
  const int64_t bytes = p.slots * std::max<int64_t>(row_bytes, 1);
  return std::max<int64_t>(1, (int64_t{1} << 16) * strips_of(p.rows) / std::max<int64_t>(bytes, 1));
}

// True where the packing fits itself and, with_rows, the rows of indptr.
inline bool good_packing(const Packing& p, bool with_rows) {
  const int64_t strips = strips_of(p.rows);
  if (p.slices && (p.slices[0] != 0 || p.slices[strips] != p.slots)) return false;
  if (with_rows &&
      (int_at(p.indptr, p.wide, 0) != 0 || int_at(p.indptr, p.wide, p.rows) != p.entries))
    return false;
  std::atomic<bool> bad{false};
  torch::stable::parallel_for(0, strips, 1 << 12, [&](int64_t begin, int64_t end) {
    bool wrong = false;
    for (int64_t s = begin; s < end; ++s) {
      const Strip strip = strip_at(p, s);
      if (p.slices) {
        const int64_t from = p.slices[s], to = p.slices[s + 1];  // compared first: differences wrap
        wrong |= from < 0 || to > p.slots || to < from || (to - from) % kStrip != 0;
      }
      for (int64_t at = s * kStrip; at < std::min(p.rows, (s + 1) * kStrip); ++at) {
        const int64_t row = row_at(p, at);
        wrong |= row < 0 || row >= p.rows;
        if (!with_rows || wrong) continue;
        const int64_t length = int_at(p.indptr, p.wide, row + 1) - int_at(p.indptr, p.wide, row);
        wrong |= length < 0 || length > strip.width;
        // A row that no position names must not fall either.
        const int64_t own = int_at(p.indptr, p.wide, at + 1) - int_at(p.indptr, p.wide, at);
        wrong |= own < 0;
      }
    }
    if (wrong) bad = true;
  });
  return !bad;
}

// False where results must be filled.
inline bool good_data(const char* op, const Packing& p, bool with_rows, int64_t promises) {
  if (!must_look(promises)) return true;
  const bool good = good_packing(p, with_rows);
  if (raise_on_bad_data()) check_good(op, good);
  return good;
}

// `count` elements of `bytes` bytes, each the beginning of `bits` repeated.
inline void fill_bad(void* out, int64_t bytes, int64_t count, uint64_t bits) {
  char* to = static_cast<char*>(out);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t b = 0; b < bytes; b += 8)
      std::memcpy(to + i * bytes + b, &bits, static_cast<size_t>(std::min<int64_t>(8, bytes - b)));
}

}  // namespace gpuprims::reorder
