// Finds and loads the library that knows the GPU (device_table.h).
#pragma once

#include <string>

#include "recovery/base/result.h"
#include "worker/device/device_table.h"

namespace warren::worker {

inline constexpr const char* kDeviceLibrary = "libwarren_cuda.so";

struct DeviceLibrary {
  const warren_device_table* table = nullptr;  // null: calls take memory of the CPU alone
  std::string says;                            // what the library has found; empty: none was loaded
  bool asked_for = false;                      // by a setting that names it

  // For the log. That there is no GPU is no news to a program that has not asked for one.
  [[nodiscard]] std::string news() const { return table != nullptr || asked_for ? says : std::string(); }
};

// `setting`: empty, kDeviceLibrary beside the library that this code is in, if it is there; "none", no library; else
// the path of one, which must be there. Without a GPU or a driver there is no table, which is no error. kUnavailable:
// the library does not load, is of another version, or finds a GPU that cannot be used. It stays loaded.
[[nodiscard]] Result<DeviceLibrary> load_device_library(const std::string& setting);

// The path of what is called so beside the library, or program, that this code is in.
[[nodiscard]] std::string beside_this(const std::string& name);
// That of the library which load_device_library() loads for this setting.
[[nodiscard]] std::string device_library_path(const std::string& setting);

// The error that a function of the table has returned.
[[nodiscard]] Status device_error(const warren_device_table& table, warren_device_code code, const std::string& what);

}  // namespace warren::worker
