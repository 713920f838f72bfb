#include "storage/rocks_journal.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "storage/files.h"
#include "storage/no_rocks_log.h"
#include "storage/rocks_status.h"
#include "storage/store_trial.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "LOCK-warren";
constexpr char kFormatKey[] = "format";
constexpr char kFormat[] = "warren-journal-4";
constexpr char kJobPrefix[] = "job/";
constexpr char kJobPrefixEnd[] = "job0";  // '0' follows '/'

std::string job_key(std::string_view job) {
  return std::string(kJobPrefix).append(job);
}

rocksdb::Slice slice(std::string_view text) {
  return {text.data(), text.size()};
}

rocksdb::Options rocks_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.compression = rocksdb::kNoCompression;
  // A journal is a few megabytes: small buffers, few files, no background statistics.
  options.write_buffer_size = std::size_t{4} << 20;
  options.max_total_wal_size = std::size_t{16} << 20;
  options.max_open_files = 64;
  options.max_background_jobs = 2;
  options.info_log = std::make_shared<NoRocksLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

// The lock of a journal's directory, held until this object goes.
class DirectoryLock {
 public:
  static Result<std::unique_ptr<DirectoryLock>> take(const std::string& directory) {
    const std::string path = directory + "/" + kLockName;
    std::error_code error;
    const bool ours = fs::exists(path, error);
    if (!ours && !fs::is_empty(directory, error)) {
      if (error) return Status(Code::kUnavailable, "cannot read " + directory + ": " + error.message());
      return Status(Code::kInvalidArgument, directory + " holds files that are not a journal of Warren: " +
                                                "give an empty or missing directory");
    }
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return Status(Code::kUnavailable, "cannot open " + path + ": " + std::strerror(errno));
    auto lock = std::unique_ptr<DirectoryLock>(new DirectoryLock(fd));
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      char holder[32] = {};
      const ssize_t n = ::pread(fd, holder, sizeof(holder) - 1, 0);
      const std::string who =
          n > 0 ? std::string(" (process ") + std::string(holder, std::strcspn(holder, "\n")) + ")" : "";
      return Status(Code::kUnavailable, "another tracker" + who + " has the journal " + directory +
                                            " open: stop it, or give this one a directory of its own");
    }
    // For people only: that it could not be written changes nothing.
    const std::string pid = std::to_string(::getpid()) + "\n";
    [[maybe_unused]] const bool written =
        ::ftruncate(fd, 0) == 0 && ::pwrite(fd, pid.data(), pid.size(), 0) == static_cast<ssize_t>(pid.size());
    return lock;
  }
  ~DirectoryLock() { ::close(fd_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace

class RocksJournal::Impl {
 public:
  std::string directory, made_private;
  std::unique_ptr<DirectoryLock> lock;  // released after db
  std::unique_ptr<rocksdb::DB> db;      // none: to be opened

  // Opens the database unless it is open. A database that failed to write takes no further writes and is no witness of
  // what its disk holds: it is closed, and whoever needs it next opens it again and so reads what is really there.
  Status need_open() {
    if (db) return {};
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status s = rocksdb::DB::Open(rocks_options(), directory, &opened);
    if (!s.ok()) return from_rocks(s, "cannot open the journal " + directory);
    db.reset(opened);
    Status format = check_format();
    if (!format.ok()) db.reset();
    return format;
  }

  Status write(rocksdb::WriteBatch& batch, std::string message) {
    if (Status s = need_open(); !s.ok()) return s.because_of_this(std::move(message));
    return write_open(batch, std::move(message));
  }

 private:
  // The format key is there, or the database is empty and gets it.
  Status check_format() {
    std::string format;
    const rocksdb::Status got = db->Get({}, kFormatKey, &format);
    if (got.ok() && format == kFormat) return {};
    if (got.ok()) return of_another_version("the journal " + directory, format, kFormat, directory);
    if (!got.IsNotFound()) return from_rocks(got, "cannot read the journal " + directory);
    {
      const std::unique_ptr<rocksdb::Iterator> all(db->NewIterator({}));
      all->SeekToFirst();
      if (!all->status().ok()) return from_rocks(all->status(), "cannot read the journal " + directory);
      if (all->Valid()) {
        return {Code::kCorrupt, directory + " has records and no format key, so it is not a journal of Warren: " +
                                    "give another directory"};
      }
    }
    rocksdb::WriteBatch batch;
    batch.Put(kFormatKey, kFormat);
    return write_open(batch, "cannot begin the journal " + directory);
  }

  Status write_open(rocksdb::WriteBatch& batch, std::string message) {
    rocksdb::WriteOptions options;
    options.sync = true;
    const rocksdb::Status s = db->Write(options, &batch);
    if (s.ok()) return {};
    db.reset();
    return from_rocks(s, std::move(message));
  }
};

RocksJournal::RocksJournal(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RocksJournal::~RocksJournal() = default;

Result<std::unique_ptr<RocksJournal>> RocksJournal::open(const std::string& directory) {
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  if (Status s = make_directory(directory); !s.ok()) return s;
  auto lock = DirectoryLock::take(directory);
  if (!lock.ok()) return lock.status();
  impl->lock = std::move(lock).value();
  // Before RocksDB has locked one of them: who closes a file lets go of this process's lock.
  impl->made_private = make_private(directory);
  // An assertion of RocksDB's, which Debian's build keeps, ends a process that opens some damaged tables.
  if (fs::exists(directory + "/CURRENT") && try_to_open("", directory) == Trial::kDies) {
    return Status(Code::kCorrupt, "the journal " + directory +
                                      " is damaged: a process that opens it dies of it. Move it away: a tracker with a "
                                      "new journal learns of running jobs from their workers");
  }
  if (Status s = impl->need_open(); !s.ok()) return s;
  return std::unique_ptr<RocksJournal>(new RocksJournal(std::move(impl)));
}

const std::string& RocksJournal::made_private() const {
  return impl_->made_private;
}

Result<std::map<std::string, std::string>> RocksJournal::load() {
  if (Status s = impl_->need_open(); !s.ok()) return s;
  std::map<std::string, std::string> records;
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}));
  for (it->Seek(kJobPrefix); it->Valid() && it->key().compare(kJobPrefixEnd) < 0; it->Next()) {
    rocksdb::Slice name = it->key();
    name.remove_prefix(std::strlen(kJobPrefix));
    records.emplace(name.ToString(), it->value().ToString());
  }
  if (!it->status().ok()) return from_rocks(it->status(), "cannot read the journal " + impl_->directory);
  return records;
}

Result<std::optional<std::string>> RocksJournal::get(std::string_view job) {
  if (Status open = impl_->need_open(); !open.ok()) return open;
  std::string bytes;
  const rocksdb::Status s = impl_->db->Get({}, job_key(job), &bytes);
  if (s.IsNotFound()) return std::optional<std::string>();
  if (!s.ok()) {
    return from_rocks(s, "cannot read the record of job " + std::string(job) + " in the journal " + impl_->directory);
  }
  return std::optional<std::string>(std::move(bytes));
}

Status RocksJournal::put(std::string_view job, std::string_view bytes) {
  rocksdb::WriteBatch batch;
  batch.Put(job_key(job), slice(bytes));
  return impl_->write(batch,
                      "cannot write the record of job " + std::string(job) + " to the journal " + impl_->directory);
}

Status RocksJournal::erase(std::string_view job) {
  rocksdb::WriteBatch batch;
  batch.Delete(job_key(job));
  return impl_->write(batch,
                      "cannot remove the record of job " + std::string(job) + " from the journal " + impl_->directory);
}

}  // namespace warren::storage
