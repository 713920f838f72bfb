// How fast results get to disk and back: the result store by itself, and the thread that writes behind a log segment.
//
//   log_store_bench --dir=DIR [--mb=1024] [--reps=3]
//
// DIR is made, and emptied before each case. Prints one JSON object a case; rates are medians over the repetitions.
#include <fcntl.h>
#include <gflags/gflags.h>
#include <rocksdb/db.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "storage/host_log.h"
#include "storage/rocks_result_store.h"
#include "storage/write_behind.h"

DEFINE_string(dir, "", "directory on the disk to be measured; it is emptied");
DEFINE_int32(mb, 1024, "megabytes of each case of large records");
DEFINE_int32(reps, 3, "repetitions of each case");

namespace {

using namespace warren;           // NOLINT(google-build-using-namespace): one program
using namespace warren::storage;  // NOLINT(google-build-using-namespace)
using bench::cpu_us;
using bench::fail;
using bench::now_us;

constexpr Incarnation kLife(1), kLater(2);

void must(const Status& s) {
  if (!s.ok()) fail(s.describe());
}

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

std::unique_ptr<RocksResultStore> open(Incarnation life) {
  auto store = RocksResultStore::open({FLAGS_dir, "bench", "w0", life}, {});
  must(store.status());
  return std::move(store).value();
}

void empty_directory() {
  std::filesystem::remove_all(FLAGS_dir);
}

RecordKey key_of(std::uint64_t sequence) {
  return {RecordKind::kRound, {Timeline(1), kWorldGroup, Version(1), Sequence(sequence)}};
}

RecordInfo info_of(std::uint64_t total_bytes) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.fingerprint.type = DataType::kF32;
  info.fingerprint.op = ReduceOp::kSum;
  info.fingerprint.count = total_bytes / 4;
  info.total_bytes = total_bytes;
  return info;
}

// Bytes that do not compress.
const std::vector<std::byte>& noise() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> b(std::size_t{64} << 20);
    std::uint64_t x = 1;
    for (std::size_t i = 0; i + 8 <= b.size(); i += 8) {
      x = x * 6364136223846793005 + 1442695040888963407;
      std::memcpy(&b[i], &x, 8);
    }
    return b;
  }();
  return bytes;
}

struct Case {
  const char* name;
  std::uint64_t record_bytes;
  std::uint64_t records;
  std::uint64_t per_put;
};

struct Figures {
  double put_s = 0, put_cpu_s = 0, put_us = 0, cold_read_s = 0, read_s = 0, scan_s = 0, report_s = 0, open_ms = 0,
         drop_ms = 0;
};

// What the next read has to fetch from the disk.
void forget_pages(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

// Seconds, by listing and then reading one after the other, as a replay does.
double read_all(ResultStore& store, const Case& c) {
  const auto reader = store.reader();
  std::vector<std::byte> out(c.record_bytes);
  std::uint64_t read = 0;
  const double begin = now_us();
  for (std::uint64_t at = 0; at < c.records;) {
    const auto keys =
        reader->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(1), Sequence(at), Sequence(c.records), 1024);
    for (const RecordKey& key : keys) {
      if (!reader->read(key, 0, out)) fail("a record cannot be read");
      ++read;
    }
    at = keys.back().round.sequence.value + 1;
  }
  if (read != c.records) fail("records are missing");
  return (now_us() - begin) / 1e6;
}

Figures measure(const Case& c) {
  Figures f;
  empty_directory();
  {
    auto store = open(kLife);
    must(store->prepare());
    RecordBatch batch;
    std::vector<double> each;
    for (std::uint64_t i = 0; i < c.records;) {
      batch.clear();
      for (std::uint64_t n = 0; n < c.per_put && i < c.records && batch.fits(c.record_bytes); ++n, ++i) {
        const auto out = batch.add(key_of(i), info_of(c.record_bytes), 0, static_cast<std::uint32_t>(c.record_bytes));
        std::memcpy(out.data(), noise().data() + (i * c.record_bytes) % (noise().size() - c.record_bytes), out.size());
      }
      const double begin = now_us(), cpu = cpu_us();
      must(store->put(batch));
      const double us = now_us() - begin;
      each.push_back(us);
      f.put_s += us / 1e6;
      f.put_cpu_s += (cpu_us() - cpu) / 1e6;
    }
    f.put_us = median(each);
  }
  auto store = open(kLater);
  const std::string directory = open(kLife)->directory();
  forget_pages(directory);
  double begin = now_us();
  if (!store->reader()->info(key_of(0)).value()) fail("nothing was written");
  f.open_ms = (now_us() - begin) / 1e3;
  f.cold_read_s = read_all(*store, c);
  f.read_s = read_all(*store, c);
  begin = now_us();
  (void)store->report(true);
  f.report_s = (now_us() - begin) / 1e6;

  // The same files by RocksDB alone.
  std::vector<std::string> names;
  rocksdb::DB::ListColumnFamilies({}, directory, &names);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  if (!rocksdb::DB::OpenForReadOnly(rocksdb::DBOptions(), directory, families, &handles, &opened).ok()) {
    fail("RocksDB does not open " + directory);
  }
  const std::unique_ptr<rocksdb::DB> db(opened);
  begin = now_us();
  std::uint64_t bytes = 0;
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, handle));
    for (it->SeekToFirst(); it->Valid(); it->Next()) bytes += it->value().size();
  }
  f.scan_s = (now_us() - begin) / 1e6;
  if (bytes < c.records * c.record_bytes) fail("RocksDB does not see all");
  for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);

  begin = now_us();
  must(store->drop({Timeline(1), Version(2), std::nullopt}));
  f.drop_ms = (now_us() - begin) / 1e3;
  return f;
}

void run(const Case& c) {
  std::vector<Figures> all;
  for (int i = 0; i < FLAGS_reps; ++i) all.push_back(measure(c));
  const auto of = [&](double Figures::*member) {
    std::vector<double> v;
    for (const Figures& f : all) v.push_back(f.*member);
    return median(v);
  };
  const double bytes = static_cast<double>(c.record_bytes * c.records), n = static_cast<double>(c.records);
  const double put = of(&Figures::put_s), read = of(&Figures::read_s), scan = of(&Figures::scan_s);
  std::printf(
      "{\"case\":\"%s\",\"record_bytes\":%llu,\"records\":%llu,\"put_us\":%.0f,\"put_mb_s\":%.0f,\"put_krec_s\":%.0f,"
      "\"put_cpu_s_per_gb\":%.2f,\"cold_read_mb_s\":%.0f,\"read_mb_s\":%.0f,\"read_krec_s\":%.0f,\"rocksdb_scan_mb_s\":"
      "%.0f,"
      "\"rocksdb_scan_krec_s\":%.0f,\"report_ms\":%.1f,\"open_ms\":%.1f,\"drop_ms\":%.1f}\n",
      c.name, static_cast<unsigned long long>(c.record_bytes), static_cast<unsigned long long>(c.records),
      of(&Figures::put_us), bytes / put / 1e6, n / put / 1e3, of(&Figures::put_cpu_s) / bytes * 1e9,
      bytes / of(&Figures::cold_read_s) / 1e6, bytes / read / 1e6, n / read / 1e3, bytes / scan / 1e6, n / scan / 1e3,
      1e3 * of(&Figures::report_s), of(&Figures::open_ms), of(&Figures::drop_ms));
  std::fflush(stdout);
}

// What sync() costs after one record, and how fast a full segment gets to disk.
void run_behind(std::uint64_t record_bytes, std::uint64_t records, int syncs) {
  std::vector<double> sync_us, drain_s;
  double published = 0;
  for (int rep = 0; rep < FLAGS_reps; ++rep) {
    empty_directory();
    const auto segment = heap_segment((record_bytes + 192) * (records + 1) * 5 / 4 + (std::size_t{32} << 20));
    auto log = HostLog::create(kLife, segment);
    must(log.status());
    WriteBehind::Options options;
    options.lag_ms = 3'600'000;
    options.lag_bytes = ~std::uint64_t{0};
    auto behind = WriteBehind::start(options, open(kLife), kLife, segment, [](const LogEvent& e) { fail(e.text); });
    must(behind.status());
    std::uint64_t next = 0;
    const auto publish = [&] {
      must(log.value()->publish(key_of(next++), info_of(record_bytes), 0, std::span(noise()).first(record_bytes)));
    };
    for (int i = 0; i < syncs; ++i) {
      publish();
      const double begin = now_us();
      must(behind.value()->sync(60'000));
      if (i > 0) sync_us.push_back(now_us() - begin);
    }
    double begin = now_us();
    while (next < records) publish();
    published += (now_us() - begin) / 1e6 / FLAGS_reps;
    begin = now_us();
    must(behind.value()->sync(600'000));
    drain_s.push_back((now_us() - begin) / 1e6);
  }
  const double n = static_cast<double>(records - static_cast<std::uint64_t>(syncs));
  std::printf(
      "{\"case\":\"write behind\",\"record_bytes\":%llu,\"records\":%llu,\"sync_us\":%.0f,\"publish_s\":%.3f,"
      "\"drain_mb_s\":%.0f,\"drain_krec_s\":%.0f}\n",
      static_cast<unsigned long long>(record_bytes), static_cast<unsigned long long>(records), median(sync_us),
      published, n * static_cast<double>(record_bytes) / median(drain_s) / 1e6, n / median(drain_s) / 1e3);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (FLAGS_dir.empty() || FLAGS_mb < 1 || FLAGS_reps < 1) fail("needs --dir=DIR, and --mb and --reps of at least 1");
  constexpr std::uint64_t kPiece = std::uint64_t{128} << 10;
  const std::uint64_t pieces = (static_cast<std::uint64_t>(FLAGS_mb) << 20) / kPiece;
  run({"pieces, 32 MiB a put", kPiece, pieces, 256});
  run({"pieces, 8 MiB a put", kPiece, pieces, 64});
  run({"pieces, 1 MiB a put", kPiece, std::min<std::uint64_t>(pieces, 2048), 8});
  run({"pieces, one a put (log)", kPiece, std::min<std::uint64_t>(pieces, 500), 1});
  run({"small, 10k", 64, 10'000, ~std::uint64_t{0}});
  run({"small, 1M", 64, 1'000'000, ~std::uint64_t{0}});
  run({"small, one a put (log)", 64, 500, 1});
  run_behind(64, 1'000'000, 200);
  run_behind(kPiece, pieces, 100);
  empty_directory();
}
