// One long row by several threads: a partition by the most significant digit that varies, then its
// buckets, each in a thread's cache. A bucket that holds more than a thread's share is partitioned
// in turn.
#pragma once
#include <atomic>

#include "sort/cpu_records.h"

namespace gpuprims {

template <class Body>
void in_slots(int64_t slots, const Body& body) {
  if (slots <= 1) return body(0);
  torch::stable::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) body(slot);
  });
}

// What is known of a row's keys after one read.
struct KeyFacts {
  uint64_t any = 0;             // or
  uint64_t all = ~uint64_t{0};  // and
  bool sorted = true;

  // Bits that differ between two keys, within [low, top).
  BitRange varying(BitRange bits) const {
    if (bits.width() == 0) return {bits.low, bits.low};
    const uint64_t mask = (~uint64_t{0} >> (64 - bits.width())) << bits.low;
    const uint64_t differ = (any ^ all) & mask;
    if (!differ) return {bits.low, bits.low};
    return {__builtin_ctzll(differ), 64 - __builtin_clzll(differ)};
  }
};

template <class Record>
class ParallelSorter {
 public:
  ParallelSorter(int64_t n, int64_t slots) : slots_(slots), share_(n / (2 * slots)) {}

  // Result in a where into_b is false, else in b.
  void sort(Record* a, Record* b, int64_t n, BitRange bits, bool into_b) {
    cut(a, b, n, bits, into_b);
    std::atomic<int64_t> next{0};
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& x, const Task& y) { return x.n > y.n; });
    in_slots(slots_, [&](int64_t) {
      for (int64_t i; (i = next.fetch_add(1)) < static_cast<int64_t>(tasks_.size());) {
        const Task& t = tasks_[i];
        Sorter<Record>::sort_to(t.a, t.b, t.n, t.bits, t.into_b);
      }
    });
  }

 private:
  struct Task {
    Record *a, *b;
    int64_t n;
    BitRange bits;
    bool into_b;
  };

  void cut(Record* a, Record* b, int64_t n, BitRange bits, bool into_b) {
    if (n <= share_ || bits.width() == 0) {
      if (n > 0) tasks_.push_back({a, b, n, bits, into_b});
      return;
    }
    const BitRange digit{std::max(bits.low, bits.top - kDigit), bits.top};
    constexpr int64_t kBins = 1 << kDigit;
    std::vector<int64_t> at(slots_ * kBins, 0);
    in_slots(slots_, [&](int64_t slot) {
      int64_t mine[kBins] = {};
      for (int64_t i = n * slot / slots_; i < n * (slot + 1) / slots_; ++i)
        ++mine[Sorter<Record>::digit_of(a[i], digit)];
      std::copy(mine, mine + kBins, &at[slot * kBins]);
    });
    int64_t starts[kBins + 1], sum = 0;
    for (int64_t d = 0; d < kBins; ++d) {
      starts[d] = sum;
      for (int64_t slot = 0; slot < slots_; ++slot) sum += std::exchange(at[slot * kBins + d], sum);
    }
    starts[kBins] = n;
    in_slots(slots_, [&](int64_t slot) {
      int64_t mine[kBins];
      std::copy(&at[slot * kBins], &at[slot * kBins] + kBins, mine);
      for (int64_t i = n * slot / slots_; i < n * (slot + 1) / slots_; ++i)
        b[mine[Sorter<Record>::digit_of(a[i], digit)]++] = a[i];
    });
    for (int64_t d = 0; d < kBins; ++d)
      cut(b + starts[d], a + starts[d], starts[d + 1] - starts[d], {bits.low, digit.low}, !into_b);
  }

  const int64_t slots_, share_;
  std::vector<Task> tasks_;
};

}  // namespace gpuprims
