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

// Neighbour lists from cells. Atoms stand in the order of their cells: sorted[s] is the position
// and order[s] the number of the s-th; cell c holds starts[c] .. starts[c + 1]. Without `indices`
// rows are counted, with them they are filled; in both cases 27 cells in one order.
extern "C" __global__ void neighbours(i64 n, i64 side, const float4* sorted, const int* order,
                                      const int* starts, const int* indptr, int* counts,
                                      int* indices, float box, float inverse, float reach2) {
  const i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s >= n) return;
  const float4 a = sorted[s];
  const int m = (int)side, own = order[s];
  const float scale = m * inverse;
  const int cx = min(max((int)(a.x * scale), 0), m - 1);
  const int cy = min(max((int)(a.y * scale), 0), m - 1);
  const int cz = min(max((int)(a.z * scale), 0), m - 1);
  int count = 0;
  int* to = indices ? indices + indptr[own] : nullptr;
  for (int dz = -1; dz <= 1; ++dz)
    for (int dy = -1; dy <= 1; ++dy)
      for (int dx = -1; dx <= 1; ++dx) {
        const int c = ((cz + dz + m) % m * m + (cy + dy + m) % m) * m + (cx + dx + m) % m;
        const int end = starts[c + 1];
        for (int t = starts[c]; t < end; ++t) {
          const float4 b = sorted[t];
          float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z;
          x -= box * rintf(x * inverse);
          y -= box * rintf(y * inverse);
          z -= box * rintf(z * inverse);
          if (x * x + y * y + z * z >= reach2 || t == s) continue;
          if (to) to[count] = order[t];
          ++count;
        }
      }
  if (counts) counts[own] = count;
}
