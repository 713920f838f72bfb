// How tests use the fake device: its table, its controls, and arrays in its memory.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/worker/device/fake_device.h"

namespace warren::test {

struct FakeGpu {
  const warren_device_table& table;
  const FakeControls& controls;
};

inline const FakeGpu& fake_gpu() {
  static const FakeGpu gpu = [] {
    void* const library = dlopen(WARREN_FAKE_DEVICE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
    const auto table = reinterpret_cast<warren_device_table_function>(dlsym(library, WARREN_DEVICE_TABLE_SYMBOL));
    const auto controls = reinterpret_cast<FakeControlsFunction>(dlsym(library, kFakeControls));
    return FakeGpu{*table(), *controls()};
  }();
  return gpu;
}

// An array on the fake device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count, std::int32_t device = 0) : count_(count), device_(device) {
    if (fake_gpu().table.allocate(device, count * sizeof(T) + 1, &memory_) != WARREN_DEVICE_OK) std::abort();
  }
  explicit DeviceArray(const std::vector<T>& values, std::int32_t device = 0) : DeviceArray(values.size(), device) {
    write(values);
  }
  // At once: it ends with a scope, which a call may leave that has failed because the device hangs.
  ~DeviceArray() { fake_gpu().controls.drop(device_, memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* data() const { return static_cast<T*>(memory_); }
  [[nodiscard]] std::span<T> span() const { return {data(), count_}; }
  void write(const std::vector<T>& values) const {
    fake_gpu().controls.write(memory_, values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    fake_gpu().controls.read(values.data(), memory_, count_ * sizeof(T));
    return values;
  }

 private:
  std::size_t count_;
  std::int32_t device_;
  void* memory_ = nullptr;
};

// An array on a GPU or on the CPU.
template <class T>
class Array {
 public:
  Array(bool on_gpu, std::vector<T> values, std::int32_t device = 0) : values_(std::move(values)) {
    if (on_gpu) gpu_ = std::make_unique<DeviceArray<T>>(values_, device);
  }
  [[nodiscard]] std::span<T> span() { return gpu_ ? gpu_->span() : std::span<T>(values_); }
  [[nodiscard]] std::vector<T> read() const { return gpu_ ? gpu_->read() : values_; }
  // As many as before.
  void write(const std::vector<T>& values) {
    if (!gpu_) std::copy(values.begin(), values.end(), values_.begin());
    if (gpu_) gpu_->write(values);
  }

 private:
  std::vector<T> values_;
  std::unique_ptr<DeviceArray<T>> gpu_;
};

}  // namespace warren::test
