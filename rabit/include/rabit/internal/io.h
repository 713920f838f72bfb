// Streams over memory.
#ifndef RABIT_INTERNAL_IO_H_
#define RABIT_INTERNAL_IO_H_

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rabit/internal/utils.h"
#include "rabit/serializable.h"

namespace rabit {
namespace utils {

// Nothing is read or written outside of a buffer, not even where the program's own handler of errors returns.
inline void MustFit(bool fits, const char* otherwise) {
  Assert(fits, "%s", otherwise);
  if (!fits) EndProcess(255);
}

// The result of Stream::Write: nothing in rabit and in dmlc-core before May 2024, the number of bytes since.
typedef decltype(std::declval<Stream&>().Write(static_cast<const void*>(nullptr), size_t())) Written;

// `buffer_size` bytes at `p_buffer`, which live longer than the stream. Writing past the end ends the process.
struct MemoryFixSizeBuffer : public SeekStream {
  // The end, by the two names that rabit had for it over the years.
  static constexpr size_t kSeekEnd = static_cast<size_t>(-1);
  static constexpr size_t SeekEnd = kSeekEnd;

  MemoryFixSizeBuffer(void* p_buffer, size_t buffer_size)
      : bytes_(static_cast<char*>(p_buffer)), size_(buffer_size), at_(0) {}

  using Stream::Read;
  using Stream::Write;
  size_t Read(void* ptr, size_t size) override {
    const size_t count = std::min(size_ - at_, size);
    if (count != 0) std::memcpy(ptr, bytes_ + at_, count);
    at_ += count;
    return count;
  }
  Written Write(const void* ptr, size_t size) override {
    MustFit(size <= size_ - at_, "write position exceed fixed buffer size");
    if (size != 0) std::memcpy(bytes_ + at_, ptr, size);
    at_ += size;
    return static_cast<Written>(size);
  }
  void Seek(size_t position) override {
    MustFit(position == kSeekEnd || position <= size_, "seek position exceed fixed buffer size");
    at_ = position == kSeekEnd ? size_ : position;
  }
  size_t Tell() override { return at_; }
  virtual bool AtEnd() const { return at_ == size_; }

 private:
  char* bytes_;
  size_t size_, at_;
};

// A string that grows with what is written; it lives longer than the stream.
struct MemoryBufferStream : public SeekStream {
  explicit MemoryBufferStream(std::string* p_buffer) : buffer_(p_buffer), at_(0) {}

  using Stream::Read;
  using Stream::Write;
  size_t Read(void* ptr, size_t size) override {
    MustFit(at_ <= buffer_->size(), "read position exceed buffer length");
    const size_t count = std::min(buffer_->size() - at_, size);
    if (count != 0) std::memcpy(ptr, &(*buffer_)[at_], count);
    at_ += count;
    return count;
  }
  Written Write(const void* ptr, size_t size) override {
    if (size != 0 && buffer_->size() < at_ + size) buffer_->resize(at_ + size);
    if (size != 0) std::memcpy(&(*buffer_)[at_], ptr, size);
    at_ += size;
    return static_cast<Written>(size);
  }
  void Seek(size_t position) override { at_ = position; }
  size_t Tell() override { return at_; }
  virtual bool AtEnd() const { return at_ == buffer_->size(); }

 private:
  std::string* buffer_;
  size_t at_;
};

}  // namespace utils
}  // namespace rabit

#endif  // RABIT_INTERNAL_IO_H_
