// Offsets as the CPU reads them, and what it writes where they are bad.
#pragma once
#include <atomic>
#include <cstring>

#include "reduce/segment_checks.h"

namespace gpuprims {

struct SegmentOffsets {
  const void* indptr;
  bool wide;
  int64_t segments;
  int64_t n;

  int64_t operator[](int64_t s) const {
    return wide ? static_cast<const int64_t*>(indptr)[s] : static_cast<const int32_t*>(indptr)[s];
  }
  bool good() const {
    if ((*this)[0] != 0 || (*this)[segments] != n) return false;
    std::atomic<bool> bad{false};
    torch::stable::parallel_for(0, segments, 1 << 16, [&](int64_t begin, int64_t end) {
      bool falls = false;
      for (int64_t s = begin; s < end; ++s) falls |= (*this)[s + 1] < (*this)[s];
      if (falls) bad = true;
    });
    return !bad;
  }
};

// False where results must be filled.
inline bool good_offsets(const char* op, const SegmentOffsets& csr, int64_t promises) {
  const bool raise = raise_on_bad_data();
  if ((promises & kReduceChecked) && !raise) return true;
  const bool good = csr.good();
  if (raise) check_segment_good(op, good, csr.n);
  return good;
}

inline void fill_segments(void* out, int bytes, int64_t count, uint64_t bits) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(static_cast<char*>(out) + i * bytes, &bits, bytes);
}

}  // namespace gpuprims
