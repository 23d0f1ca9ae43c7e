// Survey propagation on 3-SAT. A literal's row lists the edges (clause, place) it stands in: row 2
// v is variable v, row 2 v + 1 its negation. A round is two kernels: for every row the product of 1
// - survey over its edges (the indirect access), then new surveys of every clause from its
// literals' rows. Products skip zeros and count them, so that a clause can take its own factor out
// again. No atomics; a row's factors are multiplied in the order of the row (of 4 lanes in
// row_csr), so bits repeat.

typedef long long i64;

__device__ __forceinline__ void take(float survey, float& product, float& zeros) {
  const float factor = 1.0f - survey;
  zeros += factor == 0.0f ? 1.0f : 0.0f;
  product *= factor == 0.0f ? 1.0f : factor;
}

// The seed's original: a thread a row of a CSR list.
extern "C" __global__ void row_original(i64 rows, const int* indptr, const int* edges,
                                        const float* surveys, float2* products) {
  const i64 r = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float product = 1.0f, zeros = 0.0f;
  const int end = indptr[r + 1];
#pragma unroll 4
  for (int e = indptr[r]; e < end; ++e) take(surveys[edges[e]], product, zeros);
  products[r] = make_float2(product, zeros);
}

// A good kernel for the same list: 4 lanes a row.
extern "C" __global__ void row_csr(i64 rows, const int* indptr, const int* edges,
                                   const float* surveys, float2* products) {
  const i64 thread = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  const i64 r = thread / 4;
  float product = 1.0f, zeros = 0.0f;
  if (r < rows) {
    const int end = indptr[r + 1];
    for (int e = indptr[r] + threadIdx.x % 4; e < end; e += 4)
      take(surveys[edges[e]], product, zeros);
  }
  for (int step = 1; step < 4; step *= 2) {
    product *= __shfl_xor_sync(0xffffffffu, product, step);
    zeros += __shfl_xor_sync(0xffffffffu, zeros, step);
  }
  if (r < rows && threadIdx.x % 4 == 0) products[r] = make_float2(product, zeros);
}

// Edges in thread-access order: slot (k, lane) of slice s at slices[s] + 32 k + lane, for the row
// at each position, of `order`.
extern "C" __global__ void row_sliced(i64 rows, const int* indptr, const i64* slices,
                                      const int* order, const int* edges, const float* surveys,
                                      float2* products) {
  const i64 p = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (p >= rows) return;
  float product = 1.0f, zeros = 0.0f;
  const int r = order[p];
  const int* at = edges + slices[p / 32] + p % 32;
  const int length = indptr[r + 1] - indptr[r];
#pragma unroll 4
  for (int k = 0; k < length; ++k) take(surveys[at[32 * k]], product, zeros);
  products[r] = make_float2(product, zeros);
}

// The seed's new_A: the surveys themselves in thread-access order; positions from `first` (a
// multiple of 32) on.
extern "C" __global__ void row_packed(i64 rows, i64 first, const int* indptr, const i64* slices,
                                      const int* order, const float* packed, float2* products) {
  const i64 p = first + blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (p >= first + rows) return;
  float product = 1.0f, zeros = 0.0f;
  const int r = order[p];
  const float* at = packed + (slices[p / 32] - slices[first / 32]) + p % 32;
  const int length = indptr[r + 1] - indptr[r];
#pragma unroll 4
  for (int k = 0; k < length; ++k) take(at[32 * k], product, zeros);
  products[r] = make_float2(product, zeros);
}

// Place k of clause a at k * clauses + a: literals (2 v + negated, or -1 for none) and surveys.
// With `slots`, the new survey also goes to its place in thread-access order: the index moves from
// the loads of the next round to these stores. `change` takes the largest difference of a clause,
// if given.
extern "C" __global__ void clauses(i64 count, const int* literals, const float2* products,
                                   float* surveys, const int* slots, float* packed, float* change) {
  const i64 a = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (a >= count) return;
  float pi[3], old[3];
  int literal[3];
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    literal[k] = literals[k * count + a];
    old[k] = surveys[k * count + a];
    pi[k] = 1.0f;
    if (literal[k] < 0) continue;
    const float2 same = products[literal[k]], against = products[literal[k] ^ 1];
    const float factor = 1.0f - old[k];
    const float others = factor == 0.0f ? (same.y == 1.0f ? same.x : 0.0f)
                                        : (same.y == 0.0f ? same.x / factor : 0.0f);
    const float opposed = against.y == 0.0f ? against.x : 0.0f;
    const float unsatisfied = (1.0f - opposed) * others, satisfied = (1.0f - others) * opposed;
    const float total = unsatisfied + satisfied + others * opposed;
    pi[k] = total > 0.0f ? unsatisfied / total : 0.0f;
  }
  float most = 0.0f;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    if (literal[k] < 0) continue;
    const float value = pi[(k + 1) % 3] * pi[(k + 2) % 3];
    most = fmaxf(most, fabsf(value - old[k]));
    surveys[k * count + a] = value;
    if (slots) packed[slots[k * count + a]] = value;
  }
  if (change) change[a] = most;
}
