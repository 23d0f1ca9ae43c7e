// CUB's radix sorts behind a C interface, for bench/rivals/cub_sort.py. Keys are unsigned bits or
// floats; payloads are 32-bit indices, which the caller fills once (so CUB is not charged for them).
#include <cub/cub.cuh>

namespace {

template <class Key>
cudaError_t sort(void* memory, size_t& bytes, const void* in, void* out, const unsigned* index_in,
                 unsigned* index_out, long long rows, long long n, const int* offsets,
                 cudaStream_t stream) {
  const Key* const keys = static_cast<const Key*>(in);
  Key* const sorted = static_cast<Key*>(out);
  const int bits = sizeof(Key) * 8;
  if (rows == 1) {
    return index_in ? cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, index_in,
                                                      index_out, n, 0, bits, stream)
                    : cub::DeviceRadixSort::SortKeys(memory, bytes, keys, sorted, n, 0, bits, stream);
  }
  const int total = static_cast<int>(rows * n), segments = static_cast<int>(rows);
  return index_in
             ? cub::DeviceSegmentedRadixSort::SortPairs(memory, bytes, keys, sorted, index_in,
                                                        index_out, total, segments, offsets,
                                                        offsets + 1, 0, bits, stream)
             : cub::DeviceSegmentedRadixSort::SortKeys(memory, bytes, keys, sorted, total, segments,
                                                       offsets, offsets + 1, 0, bits, stream);
}

}  // namespace

// kind: 0 uint32, 1 float32, 2 uint64, 3 float64. memory null: writes the bytes it needs.
extern "C" int cub_sort(int kind, void* memory, size_t* bytes, const void* in, void* out,
                        const unsigned* index_in, unsigned* index_out, long long rows, long long n,
                        const int* offsets, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  switch (kind) {
    case 0:
      return sort<unsigned>(memory, *bytes, in, out, index_in, index_out, rows, n, offsets, s);
    case 1:
      return sort<float>(memory, *bytes, in, out, index_in, index_out, rows, n, offsets, s);
    case 2:
      return sort<unsigned long long>(memory, *bytes, in, out, index_in, index_out, rows, n, offsets, s);
    default:
      return sort<double>(memory, *bytes, in, out, index_in, index_out, rows, n, offsets, s);
  }
}
