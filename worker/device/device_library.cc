#include "worker/device/device_library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace warren::worker {
namespace {

constexpr const char* kOtherwise = "; WARREN_DEVICE_LIBRARY=none goes without the GPU";

}  // namespace

std::string beside_this(const std::string& name) {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_device_library), &here) == 0 || here.dli_fname == nullptr) return name;
  const std::string file = here.dli_fname;
  return file.substr(0, file.rfind('/') + 1) + name;
}

std::string device_library_path(const std::string& setting) {
  return setting.empty() ? beside_this(kDeviceLibrary) : setting;
}

Result<DeviceLibrary> load_device_library(const std::string& setting) {
  DeviceLibrary out;
  if (setting == "none") return out;
  out.asked_for = !setting.empty();
  const std::string path = device_library_path(setting);
  if (setting.empty() && access(path.c_str(), F_OK) != 0) return out;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status(Code::kUnavailable, path + " does not load: " + (why == nullptr ? "" : why) + kOtherwise);
  }
  const auto function = reinterpret_cast<warren_device_table_function>(dlsym(library, WARREN_DEVICE_TABLE_SYMBOL));
  const warren_device_table* table = function == nullptr ? nullptr : function();
  if (table == nullptr || table->version != WARREN_DEVICE_TABLE_VERSION ||
      table->bytes != sizeof(warren_device_table)) {
    return Status(Code::kUnavailable, path + " is of another version than this library: it lacks " +
                                          WARREN_DEVICE_TABLE_SYMBOL + kOtherwise);
  }
  std::int32_t devices = 0;
  const warren_device_code code = table->init(&devices);
  if (code == WARREN_DEVICE_NONE) {
    out.says = std::string("GPU buffers: ") + table->name + " finds no GPU: " + table->error_text();
    return out;
  }
  if (code != WARREN_DEVICE_OK) {
    return device_error(*table, code, path + " finds a GPU that cannot be used")
        .because_of_this(std::string("cannot serve GPU buffers") + kOtherwise);
  }
  out.table = table;
  out.says = std::string("GPU buffers: ") + table->name + ", " + std::to_string(devices) + " devices";
  return out;
}

Status device_error(const warren_device_table& table, warren_device_code code, const std::string& what) {
  const char* text = table.error_text();
  return {code == WARREN_DEVICE_NO_MEMORY ? Code::kExhausted : Code::kUnavailable,
          what + ": " + (text == nullptr || *text == 0 ? "no reason was given" : text)};
}

}  // namespace warren::worker
