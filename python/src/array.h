// Arrays of the program's as the C interface takes them: memory, element type and count.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "warren/c_api.h"

namespace warren_python {

enum class Access { kRead, kWrite };

// A C-contiguous array in memory of the CPU or a GPU, without a copy. While this object lives, the memory stays where
// it is.
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { release(); }
  // `argument` is what errors call it. Throws TypeError where `object` is no array or its element type has no equal
  // here, and ValueError where it is not C-contiguous, or read-only and to be written. Once.
  void take(nanobind::handle object, const char* argument, Access access);

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] warren_type type() const { return type_; }
  // Not for managed memory, which the CPU reads as well.
  [[nodiscard]] bool on_gpu() const { return on_gpu_; }
  [[nodiscard]] std::vector<std::size_t> shape() const;

 private:
  bool take_numpy(nanobind::handle object, Access access);
  bool take_buffer(nanobind::handle object, const char* argument, Access access);
  bool take_dlpack(nanobind::handle object, const char* argument, Access access);
  void release() noexcept;

  nanobind::object numpy_;  // an array of NumPy's, if it was taken as one
  bool has_view_ = false;
  Py_buffer view_;  // if has_view_
  std::optional<nanobind::ndarray<>> writable_;
  std::optional<nanobind::ndarray<nanobind::ro>> readable_;
  void* data_ = nullptr;
  std::size_t count_ = 0;
  warren_type type_ = WARREN_U8;
  bool on_gpu_ = false;
};

const char* name_of(warren_type type);
// A new NumPy array of the shape, with the elements of `like`, which `array` describes.
nanobind::object new_array(const std::vector<std::size_t>& shape, const Array& array, nanobind::handle like);

}  // namespace warren_python
