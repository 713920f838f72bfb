#include "storage/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren::storage {
namespace {

using Key = std::array<unsigned char, 32>;

constexpr std::string_view kFirstLine = "warren-secret-1";
constexpr std::size_t kMaxFileBytes = 1024;
static_assert(limits::kMaxJobNameBytes + 256 <= kMaxFileBytes);

void need_sodium() {
  static const int ready = sodium_init();
  WARREN_CHECK(ready >= 0, "libsodium starts: without randomness there are no keys");
}

void wipe(std::string& text) {
  sodium_memzero(text.data(), text.size());
}

// A string that is wiped when it goes.
struct SecretText {
  std::string text;
  ~SecretText() { wipe(text); }
};

struct SecretKey {
  Key bytes{};
  ~SecretKey() { sodium_memzero(bytes.data(), bytes.size()); }
};

void derive(const Key& from, std::string_view label, std::string_view data, Key& out) {
  crypto_generichash_state state;
  const auto label_bytes = static_cast<unsigned char>(label.size());
  crypto_generichash_init(&state, from.data(), from.size(), out.size());
  crypto_generichash_update(&state, &label_bytes, 1);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(label.data()), label.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(data.data()), data.size());
  crypto_generichash_final(&state, out.data(), out.size());
  sodium_memzero(&state, sizeof(state));
}

Key curve_public(const Key& secret) {
  Key out{};
  WARREN_CHECK(crypto_scalarmult_base(out.data(), secret.data()) == 0, "a derived CURVE key has a public half");
  return out;
}

std::string z85(const Key& key) {
  static constexpr char kAlphabet[] =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
  std::string text;
  text.reserve(key.size() / 4 * 5);
  for (std::size_t i = 0; i < key.size(); i += 4) {
    std::uint32_t v = 0;
    for (std::size_t j = 0; j < 4; ++j) v = v << 8 | key[i + j];
    std::uint32_t divisor = 85 * 85 * 85 * 85;
    for (int j = 0; j < 5; ++j, divisor /= 85) text += kAlphabet[v / divisor % 85];
  }
  return text;
}

std::string hex(const Key& key) {
  std::string text(key.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), key.data(), key.size());
  text.pop_back();
  return text;
}

bool from_hex(std::string_view text, Key& out) {
  std::size_t bytes = 0;
  return text.size() == out.size() * 2 &&
         sodium_hex2bin(out.data(), out.size(), text.data(), text.size(), nullptr, &bytes, nullptr) == 0 &&
         bytes == out.size();
}

Status check_job_name(std::string_view job) {
  return validate_name("job", job, limits::kMaxJobNameBytes);
}

std::string errno_text(int error) {
  return std::strerror(error);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Status check_file(const std::string& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return {Code::kUnavailable, "cannot look at " + path + ": " + errno_text(errno)};
  if (!S_ISREG(info.st_mode)) return {Code::kRefused, path + " is not a regular file"};
  // Orchestrators mount secrets as files of root that the group of the container may read (Kubernetes' fsGroup).
  const bool mounted = info.st_uid == 0 && ::geteuid() != 0 && (info.st_mode & 037) == 0;
  if (info.st_uid != ::geteuid() && !mounted) {
    return {Code::kRefused, path + " belongs to user id " + std::to_string(info.st_uid) + " and this process runs as " +
                                std::to_string(::geteuid()) +
                                ": use a secret file of your own, or one of root's that your group may read and nobody "
                                "else (mode 0440)"};
  }
  if (!mounted && (info.st_mode & 077) != 0) {
    return {Code::kRefused, path + " can be read or changed by others; if they had no chance to, run: chmod 600 " +
                                path + "; otherwise make a new secret"};
  }
  return {};
}

Status read_file(const std::string& path, std::string& text) {
  // Symbolic links are followed (orchestrators mount secrets so); what counts is whose file is at the end. O_NONBLOCK:
  // a FIFO must not hang us.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return {Code::kUnavailable, "cannot open " + path + ": " + errno_text(errno)};
  if (Status s = check_file(path, file.get()); !s.ok()) return s;
  text.resize(kMaxFileBytes + 1);
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return {Code::kUnavailable, "cannot read " + path + ": " + errno_text(errno)};
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  text.resize(got);
  return {};
}

Status write_new_file(const std::string& path, std::string_view text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) {
    const int error = errno;
    if (error == EEXIST) {
      return {Code::kInvalidArgument,
              path + " exists and a secret is never overwritten: remove it or give another path"};
    }
    return {Code::kInternal, "cannot create " + path + ": " + errno_text(error)};
  }
  // Half a secret must not stay behind.
  const auto fail = [&](const char* what) {
    const int error = errno;
    ::unlink(path.c_str());
    return Status(Code::kInternal, std::string("cannot ") + what + " " + path + ": " + errno_text(error));
  };
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("write");
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(file.get()) != 0) return fail("sync");
  return {};
}

// Takes "name value\n" off the front of `text`; nullopt: it does not begin so.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view name) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || text.substr(0, name.size()) != name) return std::nullopt;
  std::string_view value = text.substr(name.size(), end - name.size());
  text.remove_prefix(end + 1);
  return value;
}

}  // namespace

CurveKeys::~CurveKeys() {
  wipe(secret_z85);
}
JobCredentials::~JobCredentials() {
  sodium_memzero(link_key.data(), link_key.size());
}

Secret::Secret(Secret&& other) noexcept
    : key_(other.key_), job_(std::move(other.job_)), tracker_public_(other.tracker_public_) {
  sodium_memzero(other.key_.data(), other.key_.size());
}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    key_ = other.key_;
    job_ = std::move(other.job_);
    tracker_public_ = other.tracker_public_;
    sodium_memzero(other.key_.data(), other.key_.size());
  }
  return *this;
}

Secret::~Secret() {
  sodium_memzero(key_.data(), key_.size());
}

Result<Secret> Secret::load(const std::string& path) {
  need_sodium();
  SecretText file;
  if (Status s = read_file(path, file.text); !s.ok()) return s.because_of_this("cannot use the secret");
  Result<Secret> secret = parse(file.text);
  if (!secret.ok()) {
    return secret.status().because_of_this(path + " is not a secret file (make one with: warren keygen --out=FILE)");
  }
  return secret;
}

Result<Secret> Secret::parse(std::string_view text) {
  const auto corrupt = [](std::string why) { return Status(Code::kCorrupt, std::move(why)); };
  if (text.size() > kMaxFileBytes) return corrupt("it is larger than " + std::to_string(kMaxFileBytes) + " bytes");
  const auto first = take_line(text, kFirstLine);
  if (!first || !first->empty()) return corrupt("its first line is not \"" + std::string(kFirstLine) + "\"");
  Secret secret;
  if (const auto job = take_line(text, "job ")) {
    if (Status s = check_job_name(*job); !s.ok()) return s.because_of_this(Code::kCorrupt, "its job line is wrong");
    secret.job_ = std::string(*job);
    const auto tracker = take_line(text, "tracker ");
    if (!tracker || !from_hex(*tracker, secret.tracker_public_)) {
      return corrupt("no \"tracker\" line with 64 hexadecimal digits follows its job line");
    }
  }
  const auto key = take_line(text, "key ");
  if (!key || !from_hex(*key, secret.key_)) return corrupt("it has no \"key\" line with 64 hexadecimal digits");
  if (!text.empty()) return corrupt("something follows its key line");
  return secret;
}

Status Secret::generate(const std::string& path) {
  need_sodium();
  SecretKey key;
  randombytes_buf(key.bytes.data(), key.bytes.size());
  SecretText digits{hex(key.bytes)};
  SecretText text;
  text.text.reserve(kMaxFileBytes);  // never moved while it grows
  text.text.append(kFirstLine).append("\nkey ").append(digits.text).append("\n");
  return write_new_file(path, text.text);
}

Status Secret::write_job_secret(std::string_view job, const std::string& path) const {
  need_sodium();
  if (!is_root()) {
    return {Code::kInvalidArgument,
            "this is the secret of job " + *job_ + ": other secrets derive from a root secret only"};
  }
  if (Status s = check_job_name(job); !s.ok()) return s;
  SecretKey tracker, job_key;
  derive(key_, "tracker curve", "", tracker.bytes);
  derive(key_, "job", job, job_key.bytes);
  SecretText digits{hex(job_key.bytes)};
  SecretText text;
  text.text.reserve(kMaxFileBytes);
  text.text.append(kFirstLine).append("\njob ").append(job);
  text.text.append("\ntracker ").append(hex(curve_public(tracker.bytes)));
  text.text.append("\nkey ").append(digits.text).append("\n");
  return write_new_file(path, text.text);
}

Result<JobCredentials> Secret::for_job(std::string_view job) const {
  need_sodium();
  if (Status s = check_job_name(job); !s.ok()) return s;
  if (job_ && *job_ != job) {
    return Status(Code::kRefused, "the secret file is that of job " + *job_ + ", not of job " + std::string(job));
  }
  SecretKey job_key, worker, fetch, link;
  JobCredentials credentials;
  if (job_) {
    job_key.bytes = key_;
    credentials.tracker_public_z85 = z85(tracker_public_);
  } else {
    derive(key_, "job", job, job_key.bytes);
    credentials.tracker_public_z85 = tracker_keys().public_z85;
  }
  derive(job_key.bytes, "worker control", "", worker.bytes);
  derive(job_key.bytes, "fetch", "", fetch.bytes);
  derive(job_key.bytes, "data link", "", link.bytes);
  credentials.worker.public_z85 = z85(curve_public(worker.bytes));
  credentials.worker.secret_z85 = z85(worker.bytes);
  credentials.fetch.public_z85 = z85(curve_public(fetch.bytes));
  credentials.fetch.secret_z85 = z85(fetch.bytes);
  std::memcpy(credentials.link_key.data(), link.bytes.data(), link.bytes.size());
  return credentials;
}

CurveKeys Secret::tracker_keys() const {
  need_sodium();
  WARREN_CHECK(is_root(), "only a root secret has the tracker's keys");
  SecretKey tracker;
  derive(key_, "tracker curve", "", tracker.bytes);
  CurveKeys keys;
  keys.public_z85 = z85(curve_public(tracker.bytes));
  keys.secret_z85 = z85(tracker.bytes);
  return keys;
}

}  // namespace warren::storage
