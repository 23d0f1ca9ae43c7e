// pack_rows, unpack_rows and gather_packed on the CPU: strips, or positions, are dealt to threads.
#include "reorder/cpu_data.h"
#include "reorder/move_ops.h"

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
void move_slots(const MoveArgs& args, int64_t bytes, const char* filler) {
  const Packing& p = args.p;
  const char* const from = static_cast<const char*>(args.from);
  char* const to = static_cast<char*>(args.to);
  const int64_t grain = strips_a_task(p, bytes);
  with_word(bytes, [&](auto word) {
    torch::stable::parallel_for(0, strips_of(p.rows), grain, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        strip_slots<decltype(word), kPack>(p, s, from, to, bytes, filler);
    });
  });
}

void gather_slots(const MoveArgs& args, int64_t bytes, const char* filler) {
  const char* const from = static_cast<const char*>(args.from);
  char* const to = static_cast<char*>(args.to);
  std::string bad(static_cast<size_t>(bytes), '\0');
  fill_bad(bad.data(), args.element, bytes / args.element, args.bad);
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 16) / bytes);
  with_word(bytes, [&](auto word) {
    torch::stable::parallel_for(0, args.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = int_at(args.index, args.wide_index, i);
        const bool inside = j >= 0 && j < args.source_rows;
        const char* const other = j == -1 ? filler : bad.data();
        copy_slot<decltype(word)>(to + i * bytes, inside ? from + j * bytes : other, bytes);
      }
    });
  });
}

struct Cpu {
  using Guard = NoGuard;

  static void move(const char* op, const MoveArgs& args, Tensor& out, int64_t promises) {
    const bool moves_rows = args.move != Move::gather;
    if (moves_rows && !good_data(op, args.p, true, promises)) {
      fill_bad(args.to, args.element, out.numel(), args.bad);
      return;
    }
    if (out.numel() == 0) return;
    const int64_t bytes = args.word * args.words;
    std::string filler(static_cast<size_t>(bytes), '\0');  // a slot that nothing fills
    for (int64_t at = 0; args.fill && at < bytes; at += args.element)
      std::memcpy(filler.data() + at, args.fill, static_cast<size_t>(args.element));
    if (args.move == Move::pack) return move_slots<true>(args, bytes, filler.data());
    if (args.move == Move::gather) return gather_slots(args, bytes, filler.data());
    if (args.p.order && !(promises & kChecked))  // rows may repeat
      std::memset(args.to, 0, static_cast<size_t>(out.numel() * args.element));
    move_slots<false>(args, bytes, nullptr);
  }
};

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  gpuprims::reorder::register_moves<gpuprims::reorder::Cpu>(m);
}
