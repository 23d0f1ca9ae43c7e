"""C++ of compile_reduction: the user's expressions between two skeletons, one for NVRTC, one for the CPU.

The tree. Contiguous extent: chunks of 4,096; element i of a chunk joins accumulator i mod 32 V in order (V
elements make 16 bytes, 8 at most); accumulators are halved. Strided extent: pieces of 64 rows; row i joins
lane i mod 8, and the lanes are halved. Results of chunks or pieces are the elements of the next pass, until
there is one. `init` stands where there is no element.
"""

import torch

#: dtype -> (type of an element, of an accumulator, of a result; how an element is read and a result stored)
_TYPES = {
    torch.float32: ("float", "float", "float"),
    torch.float64: ("double", "double", "double"),
    torch.float16: ("Half", "float", "Half"),
    torch.bfloat16: ("BFloat16", "float", "BFloat16"),
    torch.int8: ("signed char", "long long", "long long"),
    torch.int16: ("short", "long long", "long long"),
    torch.int32: ("int", "long long", "long long"),
    torch.int64: ("long long", "long long", "long long"),
    torch.uint8: ("unsigned char", "long long", "long long"),
    torch.uint16: ("unsigned short", "long long", "long long"),
    torch.uint32: ("unsigned", "long long", "long long"),
    torch.bool: ("unsigned char", "long long", "long long"),
}
DTYPES = tuple(_TYPES)
ACCUMULATOR_BYTES = {dtype: 4 if names[1] == "float" else 8 for dtype, names in _TYPES.items()}
CHUNK, PIECE = 4096, 64

_COMMON = """
struct Half { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
typedef ELEMENT Element;
typedef ACCUMULATOR A;
typedef RESULT Result;
typedef long long Int;
constexpr int kChunk = 4096, kPiece = 64, kLanes = 8;
constexpr int kVector = sizeof(Element) >= 2 ? 16 / sizeof(Element) : 8;
constexpr int kNextVector = 16 / sizeof(A);

template <class T> FN A widen(T x) { return static_cast<A>(x); }
FN A widen(BFloat16 x) {
  const unsigned bits = static_cast<unsigned>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return static_cast<A>(value);
}
template <class T> FN void store(T* to, A x) { *to = static_cast<T>(x); }
FN void store(BFloat16* to, A x) {
  const float value = static_cast<float>(x);
  unsigned bits;
  memcpy(&bits, &value, 4);
  const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = static_cast<unsigned short>(value != value ? 0x7fc0 : rounded);
}
"""

_USER = """
FN A user_transform(A x) { return static_cast<A>(
#line 1 "transform"
TRANSFORM
#line 1 "skeleton"
); }
FN A user_combine(A a, A b) { return static_cast<A>(
#line 1 "combine"
COMBINE
#line 1 "skeleton"
); }
FN A user_init() { return static_cast<A>(
#line 1 "init"
INIT
#line 1 "skeleton"
); }
FN A user_finalize(A a, A n) { (void)n; return static_cast<A>(
#line 1 "finalize"
FINALIZE
#line 1 "skeleton"
); }
FN A enter(Element x) { return user_transform(widen(x)); }
struct Partial { A value; };
FN A enter(Partial x) { return x.value; }
"""

_DEVICE = """
#define FN __device__ __forceinline__
// Of integers, as <cmath> has them.
FN double sqrt(long long x) { return sqrt(static_cast<double>(x)); }
FN double exp(long long x) { return exp(static_cast<double>(x)); }
FN double log(long long x) { return log(static_cast<double>(x)); }
FN double fabs(long long x) { return fabs(static_cast<double>(x)); }
"""

_DEVICE_HALF = """
FN A widen(Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return static_cast<A>(value);
}
FN void store(Half* to, A x) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(static_cast<float>(x)));
}
"""

_KERNELS = """
template <class T, int V> struct alignas(sizeof(T) * V) Vector { T v[V]; };

// A warp a chunk.
template <class T, int V>
__device__ void rows(const T* in, void* out, Int rows, Int n, Int all, int last) {
  const int lane = threadIdx.x % 32;
  const Int chunks = n > kChunk ? (n + kChunk - 1) / kChunk : 1;
  const Int warps = static_cast<Int>(gridDim.x) * (blockDim.x / 32);
  const Int warp = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  for (Int w = warp; w < rows * chunks; w += warps) {
    const Int row = w / chunks, first = (w - row * chunks) * kChunk;
    const int length = static_cast<int>(n - first < kChunk ? n - first : kChunk);
    const T* const p = in + row * n + first;
    A sum[V];
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = user_init();
    if (reinterpret_cast<size_t>(p) % sizeof(Vector<T, V>) == 0) {
      int at = lane * V;
#pragma unroll 4
      for (; at + V <= length; at += 32 * V) {
        const Vector<T, V> v = *reinterpret_cast<const Vector<T, V>*>(p + at);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = user_combine(sum[k], enter(v.v[k]));
      }
#pragma unroll
      for (int k = 0; k < V; ++k)
        if (at + k < length) sum[k] = user_combine(sum[k], enter(p[at + k]));
#pragma unroll
      for (int by = 16; by > 0; by /= 2)
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = user_combine(sum[k], __shfl_down_sync(~0u, sum[k], by));
#pragma unroll
      for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
        for (int k = 0; k < half; ++k) sum[k] = user_combine(sum[k], sum[k + half]);
    } else {  // the same accumulators in other lanes, so that loads are coalesced
#pragma unroll 2
      for (int at = lane; at - lane < length; at += 32 * V) {
#pragma unroll
        for (int k = 0; k < V; ++k)
          if (at + 32 * k < length) sum[k] = user_combine(sum[k], enter(p[at + 32 * k]));
      }
#pragma unroll
      for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
        for (int k = 0; k < half; ++k) sum[k] = user_combine(sum[k], sum[k + half]);
#pragma unroll
      for (int by = 16; by > 0; by /= 2) sum[0] = user_combine(sum[0], __shfl_down_sync(~0u, sum[0], by));
    }
    if (lane != 0) continue;
    if (last)
      store(static_cast<Result*>(out) + w, user_finalize(sum[0], static_cast<A>(all)));
    else
      static_cast<Partial*>(out)[w].value = sum[0];
  }
}

// A thread a column of a piece.
template <class T>
__device__ void columns(const T* in, void* out, Int outer, Int n, Int inner, Int all, int last) {
  const Int pieces = n > kPiece ? (n + kPiece - 1) / kPiece : 1;
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int t = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; t < outer * pieces * inner;
       t += threads) {
    const Int part = t / inner, column = t - part * inner;
    const Int group = part / pieces, first = (part - group * pieces) * kPiece;
    const int length = static_cast<int>(n - first < kPiece ? n - first : kPiece);
    const T* const p = in + (group * n + first) * inner + column;
    A sum[kLanes];
#pragma unroll
    for (int k = 0; k < kLanes; ++k) sum[k] = user_init();
    for (int at = 0; at < length; at += kLanes)
#pragma unroll
      for (int k = 0; k < kLanes; ++k)
        if (at + k < length) sum[k] = user_combine(sum[k], enter(p[(at + k) * inner]));
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2)
#pragma unroll
      for (int k = 0; k < half; ++k) sum[k] = user_combine(sum[k], sum[k + half]);
    if (last)
      store(static_cast<Result*>(out) + t, user_finalize(sum[0], static_cast<A>(all)));
    else
      static_cast<Partial*>(out)[t].value = sum[0];
  }
}

#define KERNEL extern "C" __global__ void __launch_bounds__(256)
KERNEL rows_first(const Element* in, void* out, Int outer, Int n, Int inner, Int all, int last) {
  rows<Element, kVector>(in, out, outer, n, all, last);
}
KERNEL rows_next(const Partial* in, void* out, Int outer, Int n, Int inner, Int all, int last) {
  rows<Partial, kNextVector>(in, out, outer, n, all, last);
}
KERNEL columns_first(const Element* in, void* out, Int outer, Int n, Int inner, Int all, int last) {
  columns(in, out, outer, n, inner, all, last);
}
KERNEL columns_next(const Partial* in, void* out, Int outer, Int n, Int inner, Int all, int last) {
  columns(in, out, outer, n, inner, all, last);
}
"""

_HOST = """
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
using namespace std;
#define FN static inline
"""

_HOST_HALF = """
FN A widen(Half x) {
  const unsigned sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  float value;
  if (magnitude >= 0x7c00u) {
    const unsigned bits = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
    memcpy(&value, &bits, 4);
  } else {
    const int exponent = magnitude >> 10, fraction = magnitude & 0x3ff;
    value = ldexp(static_cast<float>(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
    if (sign) value = -value;
  }
  return static_cast<A>(value);
}
FN void store(Half* to, A x) {
  const float value = static_cast<float>(x);
  unsigned bits;
  memcpy(&bits, &value, 4);
  const unsigned sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  unsigned half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // a normal number
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  } else {  // to the nearest multiple of 2^-24, ties to even
    half = static_cast<unsigned>(nearbyint(ldexp(fabs(value), 24)));
  }
  to->bits = static_cast<unsigned short>(sign | half);
}
"""

_FUNCTIONS = """
template <class T, int V>
static void rows(const T* in, void* out, Int first_task, Int last_task, Int n, Int all, int last) {
  const Int chunks = n > kChunk ? (n + kChunk - 1) / kChunk : 1;
  A sum[32 * V];
  for (Int w = first_task; w < last_task; ++w) {
    const Int row = w / chunks, first = (w - row * chunks) * kChunk;
    const int length = static_cast<int>(n - first < kChunk ? n - first : kChunk);
    const T* const p = in + row * n + first;
    for (int a = 0; a < 32 * V; ++a) sum[a] = user_init();
    int at = 0;
    for (; at + 32 * V <= length; at += 32 * V)
      for (int a = 0; a < 32 * V; ++a) sum[a] = user_combine(sum[a], enter(p[at + a]));
    for (int a = 0; at + a < length; ++a) sum[a] = user_combine(sum[a], enter(p[at + a]));
    for (int half = 16 * V; half > 0; half /= 2)
      for (int a = 0; a < half; ++a) sum[a] = user_combine(sum[a], sum[a + half]);
    if (last)
      store(static_cast<Result*>(out) + w, user_finalize(sum[0], static_cast<A>(all)));
    else
      static_cast<Partial*>(out)[w].value = sum[0];
  }
}

template <class T>
static void columns(const T* in, void* out, Int first_task, Int last_task, Int n, Int inner, Int all,
                    int last) {
  constexpr int kTile = 64;
  const Int pieces = n > kPiece ? (n + kPiece - 1) / kPiece : 1;
  A sum[kLanes][kTile];
  for (Int part = first_task; part < last_task; ++part) {
    const Int group = part / pieces, first = (part - group * pieces) * kPiece;
    const int length = static_cast<int>(n - first < kPiece ? n - first : kPiece);
    for (Int column = 0; column < inner; column += kTile) {
      const int width = static_cast<int>(inner - column < kTile ? inner - column : kTile);
      for (int k = 0; k < kLanes; ++k)
        for (int c = 0; c < width; ++c) sum[k][c] = user_init();
      for (int at = 0; at < length; ++at) {
        const T* const p = in + (group * n + first + at) * inner + column;
        A* const lane = sum[at % kLanes];
        for (int c = 0; c < width; ++c) lane[c] = user_combine(lane[c], enter(p[c]));
      }
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int k = 0; k < half; ++k)
          for (int c = 0; c < width; ++c) sum[k][c] = user_combine(sum[k][c], sum[k + half][c]);
      for (int c = 0; c < width; ++c) {
        const Int to = part * inner + column + c;
        if (last)
          store(static_cast<Result*>(out) + to, user_finalize(sum[0][c], static_cast<A>(all)));
        else
          static_cast<Partial*>(out)[to].value = sum[0][c];
      }
    }
  }
}

// Tasks are chunks of rows, or pieces of all columns.
extern "C" void reduce_tasks(const void* in, void* out, Int first_task, Int last_task, Int n, Int inner,
                             Int all, int last, int next) {
  if (inner == 1 && !next)
    rows<Element, kVector>(static_cast<const Element*>(in), out, first_task, last_task, n, all, last);
  else if (inner == 1)
    rows<Partial, kNextVector>(static_cast<const Partial*>(in), out, first_task, last_task, n, all, last);
  else if (!next)
    columns(static_cast<const Element*>(in), out, first_task, last_task, n, inner, all, last);
  else
    columns(static_cast<const Partial*>(in), out, first_task, last_task, n, inner, all, last);
}
"""


def write_source(dtype: torch.dtype, expressions: dict[str, str], device: bool) -> str:
    """The translation unit for elements of `dtype`; expressions: transform, combine, init, finalize."""
    names = dict(zip(("ELEMENT", "ACCUMULATOR", "RESULT"), _TYPES[dtype], strict=True))
    common = _COMMON
    for word, name in names.items():
        common = common.replace(f"typedef {word} ", f"typedef {name} ")
    user = _USER
    for word, text in expressions.items():
        user = user.replace(f"\n{word.upper()}\n", f"\n{text}\n")
    if device:
        return _DEVICE + common + _DEVICE_HALF + user + _KERNELS
    return _HOST + common + _HOST_HALF + user + _FUNCTIONS
