// Runs the reordering kernels on the host: packing against the layout's own words, products against
// the tree of layout.h written as a loop, bit for bit: emulated_reorder SEED. Silent when all is
// well.
#include <cstring>
#include <string>

#include "reorder/kernels.h"
#include "simt.h"

using namespace gpuprims;
using namespace gpuprims::reorder;

extern "C" cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t) {
  std::memset(p, value, count);
  return cudaSuccess;
}

namespace {

void expect(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// A packing of rows of these lengths, with memory of its own.
struct Rows {
  std::vector<int64_t> indptr{0}, order, slices;
  std::vector<int32_t> narrow, units;
  Packing p;
  std::vector<int64_t> entry_of_slot;  // -1: empty

  Rows(const std::vector<int>& lengths, bool sliced, bool sorted, bool wide, bool with_units) {
    const auto rows = static_cast<int64_t>(lengths.size());
    for (int n : lengths) indptr.push_back(indptr.back() + n);
    std::vector<int64_t> at(rows);
    std::iota(at.begin(), at.end(), 0);
    if (sorted)
      std::stable_sort(at.begin(), at.end(),
                       [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    order = at;
    int64_t longest = 0;
    for (int n : lengths) longest = std::max<int64_t>(longest, n);
    const int64_t height = sliced ? kStrip : rows;
    const int64_t strips = rows == 0 ? 0 : sliced ? strips_of(rows) : 1;
    slices.push_back(0);
    for (int64_t s = 0; s < strips; ++s) {
      int64_t width = sliced ? 0 : longest;
      for (int64_t k = 0; sliced && k < kStrip && s * kStrip + k < rows; ++k)
        width = std::max<int64_t>(width, lengths[at[s * kStrip + k]]);
      for (int64_t i = 0; i < width; ++i)
        for (int64_t k = 0; k < height; ++k) {
          const int64_t position = s * height + k;
          const bool there = position < rows && i < lengths[at[position]];
          entry_of_slot.push_back(there ? indptr[at[position]] + i : -1);
        }
      slices.push_back(static_cast<int64_t>(entry_of_slot.size()));
      if (sliced)
        for (int64_t g = 0; g == 0 || g * kGroup < width; ++g)
          units.push_back(static_cast<int32_t>(s));
    }
    const size_t count = units.size();
    for (size_t u = 0; u < count; ++u)
      units.push_back(u > 0 && units[u] == units[u - 1] ? units[count + u - 1] + 1 : 0);
    p.wide = wide;
    p.rows = rows;
    p.slots = static_cast<int64_t>(entry_of_slot.size());
    p.entries = indptr.back();
    p.longest = sliced ? 0 : longest;
    for (int64_t v : indptr) narrow.push_back(static_cast<int32_t>(v));
    for (int64_t v : order) narrow.push_back(static_cast<int32_t>(v));
    p.indptr = wide ? static_cast<void*>(indptr.data()) : narrow.data();
    if (sorted) p.order = wide ? static_cast<void*>(order.data()) : narrow.data() + rows + 1;
    if (sliced) p.slices = slices.data();
    if (with_units && sliced) p.units = units.data(), p.unit_count = static_cast<int64_t>(count);
  }
};

std::vector<unsigned char> random_bytes(size_t count, std::mt19937& random) {
  std::vector<unsigned char> bytes(count);
  for (auto& b : bytes) b = static_cast<unsigned char>(random());
  return bytes;
}

void check_moves(const Rows& rows, int word, int64_t words, bool with_fill, std::mt19937& random) {
  const size_t slot = static_cast<size_t>(word * words);
  const auto values = random_bytes(rows.p.entries * slot, random);
  const auto fill = random_bytes(16, random);
  std::vector<unsigned char> packed(rows.p.slots * slot), back(values.size());
  MoveArgs args;
  args.p = rows.p;
  args.word = word;
  args.words = words;
  args.element = word;
  args.from = values.data();
  args.to = packed.data();
  if (with_fill) args.fill = fill.data();
  launch_move(args, nullptr);
  for (int64_t s = 0; s < rows.p.slots; ++s)
    for (size_t b = 0; b < slot; ++b) {
      const int64_t e = rows.entry_of_slot[s];
      const unsigned char want = e >= 0 ? values[e * slot + b] : with_fill ? fill[b % word] : 0;
      expect(packed[s * slot + b] == want, "pack: slot " + std::to_string(s));
    }
  args.move = Move::unpack;
  args.from = packed.data();
  args.to = back.data();
  args.fill = nullptr;
  launch_move(args, nullptr);
  for (size_t b = 0; b < values.size(); ++b)
    expect(back[b] == values[b], "unpack: entry " + std::to_string(b / slot) + ", word " +
                                     std::to_string(word) + " x " + std::to_string(words) + ", " +
                                     std::to_string(rows.p.rows) + " rows" +
                                     (rows.p.slices ? ", sliced" : ""));
}

void check_gather(int word, int64_t words, bool with_fill, std::mt19937& random) {
  const int64_t rows = 37, count = 1000;
  const size_t size = static_cast<size_t>(word * words);
  const auto values = random_bytes(rows * size, random), fill = random_bytes(16, random);
  std::vector<int32_t> index(count);
  for (auto& i : index) i = static_cast<int32_t>(random() % (rows + 2)) - 1;  // -1 and 37 too
  std::vector<unsigned char> out(count * size);
  MoveArgs args;
  args.move = Move::gather;
  args.word = args.element = word;
  args.words = words;
  args.from = values.data();
  args.to = out.data();
  args.index = index.data();
  args.count = count;
  args.source_rows = rows;
  args.bad = 0x0101010101010101ull;
  if (with_fill) args.fill = fill.data();
  launch_move(args, nullptr);
  for (int64_t i = 0; i < count; ++i)
    for (size_t b = 0; b < size; ++b) {
      const unsigned char filler = with_fill ? fill[b % word] : 0;
      const unsigned char want = index[i] == -1     ? filler
                                 : index[i] == rows ? 1
                                                    : values[index[i] * size + b];
      expect(out[i * size + b] == want, "gather: row " + std::to_string(i));
    }
}

template <class T>
T row_sum(const Rows& rows, int64_t row, const std::vector<T>& values,
          const std::vector<int>& indices, const std::vector<T>& x, int64_t m, int64_t c) {
  T piece = 0, group = 0, total = 0;
  const int64_t begin = rows.indptr[row], count = rows.indptr[row + 1] - begin;
  for (int64_t i = 0; i < count; ++i) {
    const T product = values[begin + i] * x[indices[begin + i] * m + c];
    piece = piece + product;
    if ((i + 1) % kPiece == 0) group = group + piece, piece = 0;
    if ((i + 1) % kGroup == 0) total = total + group, group = 0;
  }
  return total + (group + piece);
}

template <class T>
void check_products(const Rows& rows, int64_t m, std::mt19937& random) {
  const int64_t columns = 61;
  std::normal_distribution<double> normal;
  std::vector<T> values(rows.p.entries), x(columns * m), start(rows.p.rows * m);
  std::vector<int> indices(rows.p.entries), slots(rows.p.slots);
  std::vector<T> packed(rows.p.slots), out(rows.p.rows * m), from_csr(rows.p.rows * m);
  for (auto* list : {&values, &x, &start})
    for (auto& v : *list) v = static_cast<T>(normal(random));
  for (auto& i : indices) i = static_cast<int>(random() % columns);
  for (int64_t s = 0; s < rows.p.slots; ++s) {
    const int64_t e = rows.entry_of_slot[s];
    packed[s] = e < 0 ? T(0) : values[e];
    slots[s] = e < 0 ? -1 : indices[e];
  }
  alignas(16) int flag[4] = {1, 1, 1, 1};
  launch_check(rows.p, true, {flag}, nullptr);
  expect(flag[0] == 0, "a good packing was found bad");
  SpmvArgs args;
  args.p = rows.p;
  args.dtype = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
  args.values = packed.data();
  args.indices = slots.data();
  args.x = x.data();
  args.columns = columns;
  args.m = m;
  args.start = start.data();
  args.out = out.data();
  args.flag = flag;
  std::vector<T> partial(rows.p.unit_count * kStrip * m);
  args.partial = partial.data();
  args.ahead = loads_ahead(args) && random() % 4;
  launch_spmv(args, 1 + random() % 3, nullptr);
  Packing csr = rows.p;
  csr.order = nullptr, csr.slices = nullptr, csr.units = nullptr;
  csr.longest = csr.entries;
  LongRows long_rows;
  long_rows.flag = flag;
  long_rows.count = flag + 1;
  long_rows.capacity = long_capacity(csr.entries);
  std::vector<LongUnit> list(long_rows.capacity);
  std::vector<T> sums(long_rows.capacity * m);
  long_rows.list = list.data();
  launch_check(csr, true, long_rows, nullptr);
  expect(flag[0] == 0, "good offsets were found bad");
  args.p = csr;
  args.values = values.data();
  args.indices = indices.data();
  args.start = nullptr;
  args.out = from_csr.data();
  args.partial = sums.data();
  args.by_lane = m == 1 && random() % 2;
  launch_spmv_csr(args, long_rows, 1, nullptr);
  for (int64_t row = 0; row < rows.p.rows; ++row)
    for (int64_t c = 0; c < m; ++c) {
      const T want = row_sum(rows, row, values, indices, x, m, c);
      const int64_t at = row * m + c;
      expect(from_csr[at] == want, "spmv_csr: row " + std::to_string(row));
      expect(out[at] == start[at] + want, "spmv: row " + std::to_string(row));
    }
}

void check_bad(std::mt19937& random) {
  const std::vector<int> lengths = {3, 0, 5, 300, 2};
  for (int kind = 0; kind < 5; ++kind) {
    Rows rows(lengths, kind > 2, kind == 4, true, false);
    if (kind == 0) rows.indptr[2] = 1 << 20;
    if (kind == 1) rows.indptr[0] = 1;
    if (kind == 2) std::swap(rows.indptr[3], rows.indptr[4]);
    if (kind == 3) rows.slices[1] -= 32;
    if (kind == 4) rows.order[1] = -7;
    alignas(16) int flag[4];
    launch_check(rows.p, true, {flag}, nullptr);
    expect(flag[0] != 0, "bad data was found good: " + std::to_string(kind));
    const auto values = random_bytes(rows.p.entries * 4, random);
    std::vector<unsigned char> packed(rows.p.slots * 4);
    MoveArgs args;
    args.p = rows.p;
    args.word = args.element = 4;
    args.from = values.data();
    args.to = packed.data();
    args.flag = flag;
    args.bad = 0x0707070707070707ull;
    launch_move(args, nullptr);
    for (unsigned char b : packed) expect(b == 7, "bad data must fill");
    if (kind > 2) continue;
    LongRows long_rows;
    std::vector<LongUnit> list(long_capacity(rows.p.entries));
    long_rows.flag = flag, long_rows.count = flag + 1;
    long_rows.list = list.data(), long_rows.capacity = static_cast<int64_t>(list.size());
    launch_check(rows.p, true, long_rows, nullptr);
    expect(flag[0] != 0, "bad offsets were found good");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(static_cast<unsigned>(std::atoi(argv[1])));
  simt::random.seed(random());
  check_bad(random);
  for (int kind = 0; kind < 5; ++kind) {
    std::vector<int> lengths(kind == 3 ? 1 : kind == 4 ? 300 : 70);
    for (auto& n : lengths) n = static_cast<int>(random() % 9);
    if (kind == 1) lengths[3] = 33, lengths[40] = 256, lengths[69] = 64;
    if (kind == 2) lengths[5] = 257, lengths[6] = 600, lengths[69] = 512;
    if (kind == 4)
      for (int i = 0; i < 40; ++i) lengths[i] = 60;  // several tiles of a CSR block
    for (int layout = 0; layout < (kind == 4 ? 1 : 4); ++layout) {
      const bool wide = random() % 2;
      const Rows rows(lengths, layout > 0, layout == 2, wide, layout > 1 && kind != 0);
      for (int word : {1, 2, 4, 8, 16}) check_moves(rows, word, 1, random() % 2, random);
      if (kind < 2) check_moves(rows, 4, 3, true, random);
      if (kind == 0) check_moves(rows, 8, 33, false, random);
      check_products<float>(rows, 1, random);
      check_products<double>(rows, 1, random);
      if (kind == 2) check_products<float>(rows, 3, random);
    }
  }
  for (int word : {1, 2, 4, 8, 16})
    for (int64_t words : {1, 3, 33}) check_gather(word, words, random() % 2, random);
}
