#include "worker/device/program_gpu.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>
#include <thread>

#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

// Programs link libwarren.so: the module lies beside that, and not beside the code here, which is the program's own.
std::string module_path() {
  const char* const named = getenv("WARREN_DEVICE_LIBRARY");  // NOLINT(concurrency-mt-unsafe): one thread yet
  if (named != nullptr && *named != 0) return named;
  Dl_info library{};
  const void* const there = dlsym(RTLD_DEFAULT, "warren_create");
  if (there == nullptr || dladdr(there, &library) == 0 || library.dli_fname == nullptr) return kDeviceLibrary;
  const std::string file = library.dli_fname;
  return file.substr(0, file.rfind('/') + 1) + kDeviceLibrary;
}

struct Found {
  const warren_device_table* table = nullptr;
  std::int32_t devices = 0;
};

Result<Found> find() {
  const std::string path = module_path();
  const auto library = load_device_library(path);
  if (!library.ok()) return library.status();
  Found found{library.value().table};
  if (found.table == nullptr) {
    const std::string& says = library.value().says;
    return Status(Code::kUnavailable, says.empty() ? "there is no GPU to use: WARREN_DEVICE_LIBRARY is " + path : says);
  }
  const auto code = found.table->init(&found.devices);
  if (code != WARREN_DEVICE_OK || found.devices < 1) return device_error(*found.table, code, "cannot count GPUs");
  return found;
}

}  // namespace

Status ProgramGpu::look() {
  const auto found = find();
  return found.status();
}

Result<std::unique_ptr<ProgramGpu>> ProgramGpu::open(std::uint32_t number, std::uint32_t here) {
  const auto found = find();
  if (!found.ok()) return found.status();
  const auto [table, devices] = found.value();
  if (static_cast<std::uint32_t>(devices) < here) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread yet
    setenv("NCCL_HOSTID", ("warren-" + std::to_string(number)).c_str(), 0);
  }
  const auto device = static_cast<std::int32_t>(number % static_cast<std::uint32_t>(devices));
  std::unique_ptr<ProgramGpu> gpu(new ProgramGpu(*table, device));
  auto code = table->make_stream(device, &gpu->stream_);
  if (code == WARREN_DEVICE_OK) code = table->make_event(device, &gpu->reached_);
  if (code != WARREN_DEVICE_OK) return device_error(*table, code, "cannot use GPU " + std::to_string(device));
  return gpu;
}

ProgramGpu::~ProgramGpu() {
  for (const Buffer& buffer : all_) {
    (void)table_.release(device_, buffer.device);
    (void)table_.free_pinned(buffer.host);
  }
  if (reached_ != nullptr) (void)table_.end_event(device_, reached_);
  if (stream_ != nullptr) (void)table_.end_stream(device_, stream_);
}

Result<ProgramGpu::Buffer> ProgramGpu::take(std::size_t bytes) {
  // By powers of two, so that what is given back fits other calls, too.
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  if (const auto found = free_.find(size); found != free_.end()) {
    const Buffer buffer = found->second;
    free_.erase(found);
    return buffer;
  }
  const std::string what = "a buffer of " + std::to_string(size) + " bytes";
  void *device = nullptr, *host = nullptr;
  if (const auto code = table_.allocate(device_, size, &device); code != WARREN_DEVICE_OK) {
    return device_error(table_, code, what + " on GPU " + std::to_string(device_));
  }
  if (const auto code = table_.allocate_pinned(size, &host); code != WARREN_DEVICE_OK) {
    Status refused = device_error(table_, code, what + " in pinned memory");
    (void)table_.release(device_, device);
    return refused;
  }
  all_.push_back({static_cast<std::byte*>(host), static_cast<std::byte*>(device), size});
  return all_.back();
}

void ProgramGpu::give_back(Buffer buffer) {
  free_.emplace(buffer.bytes, buffer);
}

Status ProgramGpu::send(const Buffer& buffer, std::size_t bytes) {
  if (bytes == 0) return {};
  const auto code = table_.to_device(device_, buffer.device, buffer.host, bytes, stream_);
  return code == WARREN_DEVICE_OK ? Status() : device_error(table_, code, "cannot copy to the GPU");
}

Status ProgramGpu::fetch(const Buffer& buffer, std::size_t bytes) {
  if (bytes == 0) return {};
  const auto code = table_.to_host(device_, buffer.host, buffer.device, bytes, stream_);
  const Status come = code == WARREN_DEVICE_OK ? wait() : device_error(table_, code, "the copy was not begun");
  return come.ok() ? come : come.because_of_this("cannot copy from the GPU");
}

Status ProgramGpu::wait() {
  auto code = table_.record(device_, reached_, stream_);
  if (code == WARREN_DEVICE_OK) code = table_.query(device_, reached_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  for (; code == WARREN_DEVICE_NOT_READY; code = table_.query(device_, reached_)) {
    if (std::chrono::steady_clock::now() > until) {
      return {Code::kTimeout, "GPU " + std::to_string(device_) + " has not done what was queued in " +
                                  std::to_string(kPatienceMs) + " ms"};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return code == WARREN_DEVICE_OK ? Status()
                                  : device_error(table_, code, "GPU " + std::to_string(device_) + " has failed");
}

}  // namespace warren::worker
