// A row by counting passes alone, least significant digit first: the first pass makes records of
// the input, the last one writes values and indices, so records are moved once less than there are
// digits.
#pragma once
#include "sort/cpu_parallel.h"

namespace gpuprims {
namespace cpu_sort {

constexpr int kBins = 1 << kDigit;

// Source and target of a pass. Elements has: encode(i), the key of element i; put(to, key, i),
// which writes element i, whose key this is.
template <class Elements>
class DirectRow {
 public:
  DirectRow(const Elements& elements, int64_t n, int64_t slots)
      : elements_(elements), n_(n), slots_(slots), at_(slots * kBins) {}

  // By these bits of keys; a and b hold n records where there are more than one, two digits.
  void sort(BitRange bits, Packed* a, Packed* b) {
    const int passes = std::max(1, (bits.width() + kDigit - 1) / kDigit);
    for (int p = 0; p < passes; ++p) {
      const int low = bits.low + p * kDigit;
      const BitRange digit{low, std::min(bits.top, low + kDigit)};
      const bool first = p == 0, last = p == passes - 1;
      const auto from_input = [&](int64_t i) { return Packed::make(elements_.encode(i), i); };
      const auto from_records = [b](int64_t i) { return b[i]; };
      const auto to_records = [a](int64_t to, Packed record) { a[to] = record; };
      const auto to_output = [&](int64_t to, Packed record) {
        elements_.put(to, record.key(), record.index());
      };
      if (first && last)
        pass(digit, from_input, to_output);
      else if (first)
        pass(digit, from_input, to_records);
      else if (last)
        pass(digit, from_records, to_output);
      else
        pass(digit, from_records, to_records);
      std::swap(a, b);
    }
  }

 private:
  template <class From, class To>
  void pass(BitRange digit, const From& from, const To& to) {
    const uint32_t mask = (1u << digit.width()) - 1;
    const auto digit_of = [=](Packed r) {
      return static_cast<uint32_t>(r.key() >> digit.low) & mask;
    };
    in_slots(slots_, [&](int64_t slot) {
      const int64_t end = n_ * (slot + 1) / slots_;
      int64_t i = n_ * slot / slots_;
      uint32_t counts[2][kBins] = {};  // two, so that equal neighbours do not wait for each other
      for (; i + 1 < end; i += 2)
        ++counts[0][digit_of(from(i))], ++counts[1][digit_of(from(i + 1))];
      if (i < end) ++counts[0][digit_of(from(i))];
      for (int d = 0; d < kBins; ++d) at_[slot * kBins + d] = int64_t{counts[0][d]} + counts[1][d];
    });
    int64_t sum = 0;
    for (int64_t d = 0; d < kBins; ++d)
      for (int64_t slot = 0; slot < slots_; ++slot)
        sum += std::exchange(at_[slot * kBins + d], sum);
    in_slots(slots_, [&](int64_t slot) {
      int64_t mine[kBins];
      std::copy(&at_[slot * kBins], &at_[slot * kBins] + kBins, mine);
      const int64_t end = n_ * (slot + 1) / slots_;
      for (int64_t i = n_ * slot / slots_; i < end; ++i) {
        const Packed record = from(i);
        to(mine[digit_of(record)]++, record);
      }
    });
  }

  const Elements elements_;
  const int64_t n_, slots_;
  std::vector<int64_t> at_;
};

}  // namespace cpu_sort
}  // namespace gpuprims
