// Lennard-Jones on neighbour lists (sigma = epsilon = 1, energies shifted to 0 at the cutoff): the
// force on each atom from lists that are indirect, reordered, or gone; and the lists themselves.
// Every sum has one order, so forces repeat bit for bit; no atomics.

typedef long long i64;

// Adds what an atom at b does to one at a: force in x, y, z, energy in w.
__device__ __forceinline__ void interact(float4 a, float4 b, float box, float inverse, float cut2,
                                         float shift, float4& sum) {
  float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z;
  x -= box * rintf(x * inverse);
  y -= box * rintf(y * inverse);
  z -= box * rintf(z * inverse);
  const float r2 = x * x + y * y + z * z;
  const float s2 = 1.0f / r2, s6 = s2 * s2 * s2;
  const bool close = r2 < cut2;  // no branch: the next loads need not wait for it
  const float f = close ? 48.0f * s6 * (s6 - 0.5f) * s2 : 0.0f;
  sum.x += f * x;
  sum.y += f * y;
  sum.z += f * z;
  sum.w += close ? 4.0f * s6 * (s6 - 1.0f) - shift : 0.0f;
}

// `count` atoms at load(0), load(1), ... in order, four loads in flight.
template <typename Load>
__device__ __forceinline__ float4 walk(float4 a, int count, Load load, float box, float inverse,
                                       float cut2, float shift) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  int k = 0;
  for (; k + 4 <= count; k += 4) {
    float4 b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) b[j] = load(k + j);
#pragma unroll
    for (int j = 0; j < 4; ++j) interact(a, b[j], box, inverse, cut2, shift, sum);
  }
  for (; k < count; ++k) interact(a, load(k), box, inverse, cut2, shift, sum);
  return sum;
}

// Forces are [n] float4 with w = 0, so that they add to velocities; half of each pair's energy is
// an atom's.
__device__ __forceinline__ void store(float4 sum, i64 i, float4* force, float* energy) {
  if (energy) energy[i] = 0.5f * sum.w;
  sum.w = 0.0f;
  force[i] = sum;
}

// The seed's original: a thread an atom, which walks its row of a CSR list.
extern "C" __global__ void force_original(i64 n, const int* indptr, const int* indices,
                                          const float4* position, float4* force, float* energy,
                                          float box, float inverse, float cut2, float shift) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int begin = indptr[i];
  const auto load = [=](int k) { return position[indices[begin + k]]; };
  store(walk(position[i], indptr[i + 1] - begin, load, box, inverse, cut2, shift), i, force,
        energy);
}

// A good kernel for the same list: 8 lanes an atom read neighbouring indices.
extern "C" __global__ void force_csr(i64 n, const int* indptr, const int* indices,
                                     const float4* position, float4* force, float* energy,
                                     float box, float inverse, float cut2, float shift) {
  const i64 thread = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  const i64 i = thread / 8;
  const int lane = threadIdx.x % 8;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (i < n) {
    const int begin = indptr[i] + lane;
    const auto load = [=](int k) { return position[indices[begin + 8 * k]]; };
    const int count = (indptr[i + 1] - begin + 7) / 8;
    sum = walk(position[i], count, load, box, inverse, cut2, shift);
  }
  for (int step = 1; step < 8; step *= 2) {
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, step);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, step);
  }
  if (i < n && lane == 0) store(sum, i, force, energy);
}

// Indices in thread-access order (32 atoms a slice: slot (k, lane) = slices[s] + 32 k + lane),
// positions where they are.
extern "C" __global__ void force_sliced(i64 n, const int* indptr, const i64* slices,
                                        const int* indices, const float4* position, float4* force,
                                        float* energy, float box, float inverse, float cut2,
                                        float shift) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int* at = indices + slices[i / 32] + i % 32;
  const auto load = [=](int k) { return position[at[32 * k]]; };
  const int count = indptr[i + 1] - indptr[i];
  store(walk(position[i], count, load, box, inverse, cut2, shift), i, force, energy);
}

// The seed's new_A: the neighbours' positions themselves in thread-access order, of atoms from
// `first` on (a multiple of 32), whose slots begin at slot slices[first / 32] of all.
extern "C" __global__ void force_packed(i64 n, i64 first, const int* indptr, const i64* slices,
                                        const float4* packed, const float4* position, float4* force,
                                        float* energy, float box, float inverse, float cut2,
                                        float shift) {
  const i64 i = first + blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= first + n) return;
  const float4* at = packed + (slices[i / 32] - slices[first / 32]) + i % 32;
  const auto load = [=](int k) { return at[32 * k]; };
  const int count = indptr[i + 1] - indptr[i];
  store(walk(position[i], count, load, box, inverse, cut2, shift), i, force, energy);
}

// 10 bits, each followed by two zeros.
__device__ __forceinline__ int spread(int v) {
  v = (v | v << 16) & 0x030000FF;
  v = (v | v << 8) & 0x0300F00F;
  v = (v | v << 4) & 0x030C30C3;
  return (v | v << 2) & 0x09249249;
}

__device__ __forceinline__ int cell_of(float x, float scale, int side) {
  return min(max((int)(x * scale), 0), side - 1);
}

// The Morton code of each atom's cell.
extern "C" __global__ void cells(i64 n, i64 side, const float4* position, int* code, int* number,
                                 float inverse) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float4 a = position[i];
  const int m = (int)side;
  const float scale = m * inverse;
  code[i] = spread(cell_of(a.x, scale, m)) | spread(cell_of(a.y, scale, m)) << 1 |
            spread(cell_of(a.z, scale, m)) << 2;
  number[i] = (int)i;
}

// Three arrays of atoms in another order.
extern "C" __global__ void renumber(i64 n, const int* order, const float4* a, const float4* b,
                                    const float4* c, float4* to_a, float4* to_b, float4* to_c) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int from = order[i];
  to_a[i] = a[from];
  if (b) to_b[i] = b[from];
  if (c) to_c[i] = c[from];
}

// Neighbour lists from cells. Atoms stand in the order of their cells: sorted[s] is the position
// and order[s] the number (or s itself) of the s-th; the cell of code c begins at starts[c].
// Without `indices` rows are counted. With them they are filled, as CSR; or, where `width` is not
// 0, counted and filled at once in thread-access order: slices of 32 rows, each of `width` slots,
// of which a longer row fills `width` (its count tells). In all cases 27 cells in one order.
extern "C" __global__ void neighbours(i64 n, i64 side, const float4* sorted, const int* order,
                                      const int* starts, const int* indptr, i64 width, int* counts,
                                      int* indices, float box, float inverse, float reach2) {
  const i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s >= n) return;
  const float4 a = sorted[s];
  const int m = (int)side, own = order ? order[s] : (int)s;
  const float scale = m * inverse;
  const int cx = cell_of(a.x, scale, m), cy = cell_of(a.y, scale, m), cz = cell_of(a.z, scale, m);
  int count = 0;
  const int step = width ? 32 : 1, most = width ? (int)width : 1 << 30;
  int* to = nullptr;
  if (indices) to = indices + (width ? own / 32 * (32 * width) + own % 32 : (i64)indptr[own]);
  for (int dz = -1; dz <= 1; ++dz) {
    const int pz = cz + dz, z_cell = pz < 0 ? m - 1 : pz == m ? 0 : pz;
    const float az = pz < 0 ? a.z + box : pz == m ? a.z - box : a.z;  // the periodic image
    for (int dy = -1; dy <= 1; ++dy) {
      const int py = cy + dy, y_cell = py < 0 ? m - 1 : py == m ? 0 : py;
      const float ay = py < 0 ? a.y + box : py == m ? a.y - box : a.y;
      const int part = spread(z_cell) << 2 | spread(y_cell) << 1;
      for (int dx = -1; dx <= 1; ++dx) {
        const int px = cx + dx, x_cell = px < 0 ? m - 1 : px == m ? 0 : px;
        const float ax = px < 0 ? a.x + box : px == m ? a.x - box : a.x;
        const int c = part | spread(x_cell), end = starts[c + 1];
#pragma unroll 4
        for (int t = starts[c]; t < end; ++t) {
          const float4 b = sorted[t];
          const float x = ax - b.x, y = ay - b.y, z = az - b.z;
          if (x * x + y * y + z * z >= reach2 || t == s) continue;
          if (to && count < most) to[(i64)count * step] = order ? order[t] : t;
          ++count;
        }
      }
    }
  }
  if (counts) counts[own] = count;
}
