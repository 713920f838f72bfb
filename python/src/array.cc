#include "python/src/array.h"

#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#include <numpy/ndarraytypes.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace warren_python {
namespace {

static_assert(std::endian::native == std::endian::little, "formats are read for little-endian machines");

struct TypeName {
  warren_type type;
  const char* name;
};
constexpr std::array<TypeName, 13> kTypes{{{WARREN_BOOL, "bool"},
                                           {WARREN_I8, "int8"},
                                           {WARREN_U8, "uint8"},
                                           {WARREN_I16, "int16"},
                                           {WARREN_U16, "uint16"},
                                           {WARREN_I32, "int32"},
                                           {WARREN_U32, "uint32"},
                                           {WARREN_I64, "int64"},
                                           {WARREN_U64, "uint64"},
                                           {WARREN_F16, "float16"},
                                           {WARREN_BF16, "bfloat16"},
                                           {WARREN_F32, "float32"},
                                           {WARREN_F64, "float64"}}};

std::optional<warren_type> integer(bool is_signed, std::size_t bytes) {
  switch (bytes) {
    case 1: return is_signed ? WARREN_I8 : WARREN_U8;
    case 2: return is_signed ? WARREN_I16 : WARREN_U16;
    case 4: return is_signed ? WARREN_I32 : WARREN_U32;
    case 8: return is_signed ? WARREN_I64 : WARREN_U64;
    default: return std::nullopt;
  }
}

// The element type of a format of the buffer protocol (the module `struct` has the table).
std::optional<warren_type> type_of_format(const char* format, std::size_t bytes) {
  if (format == nullptr) return WARREN_U8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case '?': return WARREN_BOOL;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return integer(true, bytes);
    case 'B':
    case 'c':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return integer(false, bytes);
    case 'e': return WARREN_F16;
    case 'f': return WARREN_F32;
    case 'd': return WARREN_F64;
    default: return std::nullopt;
  }
}

std::optional<warren_type> type_of_dlpack(nb::dlpack::dtype type) {
  if (type.lanes != 1) return std::nullopt;
  switch (static_cast<nb::dlpack::dtype_code>(type.code)) {
    case nb::dlpack::dtype_code::Int: return integer(true, type.bits / 8U);
    case nb::dlpack::dtype_code::UInt: return integer(false, type.bits / 8U);
    case nb::dlpack::dtype_code::Float:
      if (type.bits == 16) return WARREN_F16;
      if (type.bits == 32) return WARREN_F32;
      if (type.bits == 64) return WARREN_F64;
      return std::nullopt;
    case nb::dlpack::dtype_code::Bool: return type.bits == 8 ? std::optional(WARREN_BOOL) : std::nullopt;
    case nb::dlpack::dtype_code::Bfloat: return type.bits == 16 ? std::optional(WARREN_BF16) : std::nullopt;
    default: return std::nullopt;
  }
}

// The element type of an array of NumPy's in this machine's byte order.
std::optional<warren_type> type_of_numpy(int number) {
  switch (number) {
    case NPY_BOOL: return WARREN_BOOL;
    case NPY_BYTE: return WARREN_I8;
    case NPY_UBYTE: return WARREN_U8;
    case NPY_SHORT: return WARREN_I16;
    case NPY_USHORT: return WARREN_U16;
    case NPY_INT: return WARREN_I32;
    case NPY_UINT: return WARREN_U32;
    case NPY_LONG:
    case NPY_LONGLONG: return WARREN_I64;
    case NPY_ULONG:
    case NPY_ULONGLONG: return WARREN_U64;
    case NPY_HALF: return WARREN_F16;
    case NPY_FLOAT: return WARREN_F32;
    case NPY_DOUBLE: return WARREN_F64;
    default: return std::nullopt;
  }
}

// The class numpy.ndarray, once the program has imported NumPy; null before.
PyTypeObject* ndarray_class() {
  static PyTypeObject* known = nullptr;  // guarded by the interpreter lock
  if (known != nullptr) return known;
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  const nb::object numpy = modules.attr("get")("numpy");
  if (!nb::hasattr(numpy, "ndarray")) return nullptr;
  known = reinterpret_cast<PyTypeObject*>(nb::object(numpy.attr("ndarray")).release().ptr());
  return known;
}

// Whether the library takes memory of this kind of device.
bool is_served(int device_type) {
  return device_type == nb::device::cpu::value || device_type == nb::device::cuda::value ||
         device_type == nb::device::cuda_host::value || device_type == nb::device::cuda_managed::value;
}

std::string describe(nb::handle object) {
  std::string text = nb::type_name(object.type()).c_str();
  const auto text_of = [&](const char* name) {
    const nb::object value = object.attr(name);
    return std::string(nb::str(nb::handle(value)).c_str());
  };
  if (nb::hasattr(object, "dtype")) text += " of " + text_of("dtype");
  if (nb::hasattr(object, "shape")) text += ", shape " + text_of("shape");
  return text;
}

[[noreturn]] void wrong_type(nb::handle object, const char* argument) {
  std::string known;
  for (const TypeName& type : kTypes) known += (known.empty() ? "" : ", ") + std::string(type.name);
  throw nb::type_error((std::string(argument) + " is " + describe(object) + "; the element types are " + known +
                        ", in the byte order of this machine")
                           .c_str());
}

[[noreturn]] void not_contiguous(nb::handle object, const char* argument, Access access) {
  throw nb::value_error((std::string(argument) + " is not C-contiguous (" + describe(object) + "); " +
                         (access == Access::kRead ? "give numpy.ascontiguousarray of it"
                                                  : "results can be written to contiguous arrays alone"))
                            .c_str());
}

[[noreturn]] void read_only(nb::handle object, const char* argument) {
  throw nb::value_error(
      (std::string(argument) + " is read-only, and the call writes to it (" + describe(object) + ")").c_str());
}

bool is_numpy_bfloat16(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return false;
  const nb::object name = nb::getattr(object.attr("dtype"), "name", nb::none());
  return nb::isinstance<nb::str>(name) && std::strcmp(nb::cast<const char*>(name), "bfloat16") == 0;
}

}  // namespace

const char* name_of(warren_type type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return "?";
}

void Array::take(nb::handle object, const char* argument, Access access) {
  if (take_numpy(object, access) || take_buffer(object, argument, access) || take_dlpack(object, argument, access))
    return;
  if (nb::hasattr(object, "dtype")) wrong_type(object, argument);
  throw nb::type_error((std::string(argument) + " is " + describe(object) +
                        "; give a NumPy array, or what has the buffer protocol or DLPack")
                           .c_str());
}

std::vector<std::size_t> Array::shape() const {
  if (numpy_.is_valid()) {
    const auto* const array = reinterpret_cast<const PyArrayObject*>(numpy_.ptr());
    return {PyArray_DIMS(array), PyArray_DIMS(array) + PyArray_NDIM(array)};
  }
  if (has_view_) return {view_.shape, view_.shape + view_.ndim};
  std::vector<std::size_t> lengths;
  const auto add_all = [&](const auto& tensor) {
    for (std::size_t i = 0; i < tensor.ndim(); ++i) lengths.push_back(tensor.shape(i));
  };
  if (readable_) add_all(*readable_);
  if (writable_) add_all(*writable_);
  return lengths;
}

// Reads the fields of an array of NumPy's, in a fifth of the time of the buffer protocol, for which NumPy writes a text
// and a description each time. False: it is no such array, or take_buffer() has to refuse it by name.
bool Array::take_numpy(nb::handle object, Access access) {
  if (Py_TYPE(object.ptr()) != ndarray_class()) return false;
  const auto* const array = reinterpret_cast<const PyArrayObject*>(object.ptr());
  const auto type = type_of_numpy(PyArray_TYPE(array));
  constexpr int kReadable = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  const int wanted = access == Access::kWrite ? kReadable | NPY_ARRAY_WRITEABLE : kReadable;
  if (!type || (PyArray_FLAGS(array) & wanted) != wanted || !PyArray_ISNOTSWAPPED(array)) return false;
  numpy_ = nb::borrow(object);
  type_ = *type;
  data_ = PyArray_DATA(array);
  count_ = 1;
  for (int i = 0; i < PyArray_NDIM(array); i++) count_ *= static_cast<std::size_t>(PyArray_DIM(array, i));
  return true;
}

bool Array::take_buffer(nb::handle object, const char* argument, Access access) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  // Read-only and other layouts are asked for too, as errors can name them then.
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    if (!is_numpy_bfloat16(object)) return false;
    const nb::object bits = object.attr("view")("uint16");
    if (PyObject_GetBuffer(bits.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) throw nb::python_error();
    type_ = WARREN_BF16;
  } else if (const auto type = type_of_format(view_.format, static_cast<std::size_t>(view_.itemsize))) {
    type_ = *type;
  } else {
    PyBuffer_Release(&view_);
    wrong_type(object, argument);
  }
  has_view_ = true;
  const bool contiguous = view_.ndim == 1 ? view_.len <= view_.itemsize || view_.strides[0] == view_.itemsize
                                          : PyBuffer_IsContiguous(&view_, 'C') != 0;
  if (!contiguous) not_contiguous(object, argument, access);
  if (access == Access::kWrite && view_.readonly != 0) read_only(object, argument);
  data_ = view_.buf;
  count_ = static_cast<std::size_t>(view_.len / view_.itemsize);
  return true;
}

bool Array::take_dlpack(nb::handle object, const char* argument, Access access) {
  if (!nb::hasattr(object, "__dlpack__")) return false;
  const auto describe_with = [&](const auto& tensor, const void* data) {
    const auto type = type_of_dlpack(tensor.dtype());
    if (!type) wrong_type(object, argument);
    if (!is_served(tensor.device_type())) {
      throw nb::type_error((std::string(argument) + " is in memory neither of the CPU nor of a GPU of CUDA's (" +
                            describe(object) + "); copy it there first")
                               .c_str());
    }
    on_gpu_ = tensor.device_type() == nb::device::cuda::value;
    std::int64_t expected = 1;
    for (std::size_t i = tensor.ndim(); i-- > 0;) {
      if (tensor.shape(i) != 1 && tensor.stride(i) != expected && tensor.size() != 0)
        not_contiguous(object, argument, access);
      expected *= static_cast<std::int64_t>(tensor.shape(i));
    }
    type_ = *type;
    data_ = const_cast<void*>(data);
    count_ = tensor.size();
  };
  if (access == Access::kWrite) {
    nb::ndarray<> tensor;
    if (!nb::try_cast(object, tensor)) return false;
    describe_with(tensor, tensor.data());
    writable_ = std::move(tensor);
  } else {
    nb::ndarray<nb::ro> tensor;
    if (!nb::try_cast(object, tensor)) return false;
    describe_with(tensor, tensor.data());
    readable_ = std::move(tensor);
  }
  return true;
}

void Array::release() noexcept {
  if (std::exchange(has_view_, false)) PyBuffer_Release(&view_);
}

nb::object new_array(const std::vector<std::size_t>& shape, const Array& array, nb::handle like) {
  // NumPy is imported when the first result needs it.
  static const nb::handle empty = nb::object(nb::module_::import_("numpy").attr("empty")).release();
  nb::object dtype = nb::str(name_of(array.type()));
  if (array.type() == WARREN_BF16) {
    if (!is_numpy_bfloat16(like)) throw nb::type_error("NumPy has no bfloat16: give out=");
    dtype = like.attr("dtype");
  }
  if (shape.size() == 1) return empty(shape[0], dtype);
  nb::list lengths;
  for (const std::size_t length : shape) lengths.append(length);
  return empty(nb::tuple(lengths), dtype);
}

}  // namespace warren_python
