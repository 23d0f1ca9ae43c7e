// The only door to PyTorch: LibTorch's stable ABI (2.11 and later). Nothing else may include
// torch/.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cctype>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/dtype.h"

#if !defined(TORCH_TARGET_VERSION)
#error "build with -DTORCH_TARGET_VERSION=<oldest PyTorch served>"
#endif

namespace gpuprims {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = torch::headeronly::IntHeaderOnlyArrayRef;

// Raises RuntimeError in Python with exactly these words (STD_TORCH_CHECK would add file and line).
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(parts...);
}

inline void check_call(AOTITorchError code, const char* what) {
  check(code == AOTI_TORCH_SUCCESS, what, " failed in libtorch");
}

// "[2, 3]", as PyTorch prints shapes.
inline std::string shape_text(Shape shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline std::string scalar_type_name(ScalarType t) {
  switch (t) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::UInt16:
      return "uint16";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::UInt64:
      return "uint64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::ComplexHalf:
      return "complex32";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    default: {
      std::string name = torch::headeronly::toString(t);  // Float8_e5m2: PyTorch prints float8_e5m2
      name[0] = static_cast<char>(std::tolower(name[0]));
      return name;
    }
  }
}

// The tag of a tensor's elements, or the error that every op gives for the others.
inline Dtype dtype_of(const char* op, ScalarType t) {
  switch (t) {
    case ScalarType::Byte:
      return Dtype::u8;
    case ScalarType::Char:
      return Dtype::i8;
    case ScalarType::Short:
      return Dtype::i16;
    case ScalarType::Int:
      return Dtype::i32;
    case ScalarType::Long:
      return Dtype::i64;
    case ScalarType::UInt16:
      return Dtype::u16;
    case ScalarType::UInt32:
      return Dtype::u32;
    case ScalarType::UInt64:
      return Dtype::u64;
    case ScalarType::Half:
      return Dtype::f16;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Double:
      return Dtype::f64;
    case ScalarType::Bool:
      return Dtype::boolean;
    default:
      fail(op, ": dtype ", scalar_type_name(t), " is not supported");
  }
}

// A tensor that the caller owns. An argument of a boxed kernel needs no Tensor, whose shared owner
// costs an allocation (50 ns); a Tensor passes as one.
class TensorRef {
 public:
  TensorRef(const Tensor& t) : handle_(t.get()) {}
  explicit TensorRef(AtenTensorHandle handle) : handle_(handle) {}

  AtenTensorHandle get() const { return handle_; }
  int64_t dim() const { return number(aoti_torch_get_dim, "aoti_torch_get_dim"); }
  Shape sizes() const { return extents(aoti_torch_get_sizes, "aoti_torch_get_sizes"); }
  Shape strides() const { return extents(aoti_torch_get_strides, "aoti_torch_get_strides"); }
  ScalarType scalar_type() const {  // the codes are the enumeration's own
    return static_cast<ScalarType>(number(aoti_torch_get_dtype, "aoti_torch_get_dtype"));
  }
  int32_t get_device_index() const {
    return number(aoti_torch_get_device_index, "aoti_torch_get_device_index");
  }
  const void* const_data_ptr() const {
    const void* data = nullptr;
    check_call(torch_get_const_data_ptr(handle_, &data), "torch_get_const_data_ptr");
    return data;
  }
  Tensor shared() const {
    AtenTensorHandle copy = nullptr;
    check_call(aoti_torch_new_tensor_handle(handle_, &copy), "aoti_torch_new_tensor_handle");
    return Tensor(copy);
  }

 private:
  template <class T>
  T number(AOTITorchError (*get)(AtenTensorHandle, T*), const char* what) const {
    T value{};
    check_call(get(handle_, &value), what);
    return value;
  }
  Shape extents(AOTITorchError (*get)(AtenTensorHandle, int64_t**), const char* what) const {
    return Shape(number(get, what), dim());
  }
  AtenTensorHandle handle_;
};

inline bool is_strided(TensorRef t) {
  int32_t layout = 0;
  check_call(aoti_torch_get_layout(t.get(), &layout), "aoti_torch_get_layout");
  return layout == aoti_torch_layout_strided();
}

inline bool same_device(TensorRef a, TensorRef b) {
  int32_t type_a = 0, type_b = 0;
  check_call(aoti_torch_get_device_type(a.get(), &type_a), "aoti_torch_get_device_type");
  check_call(aoti_torch_get_device_type(b.get(), &type_b), "aoti_torch_get_device_type");
  return type_a == type_b && a.get_device_index() == b.get_device_index();
}

constexpr int64_t kMaxDims = 64;  // PyTorch's own limit in most of its ops

struct DeleteTensor {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};
// A tensor with one owner: no control block to allocate, and a result passes on without a copy of
// its handle, which makes it 0.1 us cheaper than a Tensor.
using TensorPtr = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;

struct Place {
  int32_t type = 0;
  int32_t index = 0;
};

inline Place place_of(TensorRef t) {
  Place place;
  check_call(aoti_torch_get_device_type(t.get(), &place.type), "aoti_torch_get_device_type");
  check_call(aoti_torch_get_device_index(t.get(), &place.index), "aoti_torch_get_device_index");
  return place;
}

// Uninitialised contiguous tensor, straight through the C shim: the dispatcher route costs 10 us
// more a call. Memory comes from PyTorch's caching allocator on the current stream.
inline TensorPtr allocate(const char* op, Place place, ScalarType dtype, const int64_t* sizes,
                          int64_t dims) {
  int64_t strides[kMaxDims];
  check(dims <= kMaxDims, op, ": at most ", kMaxDims, " dimensions are supported, got ", dims);
  int64_t numel = 1;
  for (int64_t d = dims - 1; d >= 0; --d) {
    strides[d] = numel;
    numel *= sizes[d] > 0 ? sizes[d] : 1;
  }
  AtenTensorHandle handle = nullptr;
  const auto code = aoti_torch_empty_strided(dims, sizes, strides, static_cast<int32_t>(dtype),
                                             place.type, place.index, &handle);
  check(code == AOTI_TORCH_SUCCESS, op, ": out of memory allocating ",
        numel * static_cast<int64_t>(aoti_torch_dtype_element_size(static_cast<int32_t>(dtype))),
        " bytes");
  return TensorPtr(handle);
}

// The same beside `like`, as a Tensor.
inline Tensor empty(const char* op, TensorRef like, ScalarType dtype, const int64_t* sizes,
                    int64_t dims) {
  return Tensor(allocate(op, place_of(like), dtype, sizes, dims).release());
}

inline Tensor empty(const char* op, TensorRef like, ScalarType dtype,
                    std::initializer_list<int64_t> sizes) {
  return empty(op, like, dtype, sizes.begin(), static_cast<int64_t>(sizes.size()));
}

// Workspace: `bytes` bytes that live until the tensor dies (the caching allocator orders reuse by
// stream).
inline Tensor workspace(const char* op, TensorRef like, int64_t bytes) {
  return empty(op, like, ScalarType::Byte, {bytes});
}

inline void* data_of(const TensorPtr& t) {
  void* data = nullptr;
  check_call(torch_get_mutable_data_ptr(t.get(), &data), "torch_get_mutable_data_ptr");
  return data;
}

// Argument `i` of a boxed kernel, which owns it from here on; results go back with give_result.
// TORCH_BOX does the same through tuples and copies, at 0.1 us an argument and 0.2 us a result.
template <class T>
T take_argument(StableIValue* stack, int i) {
  return torch::stable::detail::to<T>(stack[i]);
}
inline TensorPtr take_tensor(StableIValue* stack, int i) {
  return TensorPtr(take_argument<AtenTensorHandle>(stack, i));
}

inline void give_result(StableIValue* stack, int i, TensorPtr t) {
  stack[i] = torch::stable::detail::from(t.release());
}

}  // namespace gpuprims
