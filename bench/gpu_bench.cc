// The kernels of the CUDA module beside a copy within the GPU's memory, in turns with it in one process: how much of
// the copy's rate each reaches, counting what is read and written. They are bound by memory, and so is the copy. Beside
// that, how fast pinned memory is copied to the GPU, from there, and both ways at once, in the pieces that Warren
// copies.
//
//   gpu_bench [--mb=256] [--rounds=9] [--runs=20] [--library=PATH]
//
// `mb`: of each buffer; a case has up to nine. Prints one JSON object; medians over the rounds, of `runs` launches
// each. Where there is no GPU it says so and ends with 0.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness.h"
#include "worker/device/device_library.h"

namespace {

using warren::bench::Arguments;
using warren::bench::fail;
using warren::bench::now_us;

const warren_device_table* table = nullptr;
void *stream = nullptr, *reached = nullptr;
void* crossed = nullptr;  // an event behind one of two directions
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

void must(warren_device_code code, const char* what) {
  if (code != WARREN_DEVICE_OK) fail(std::string(what) + ": " + table->error_text());
}

std::byte* allocate(std::size_t bytes) {
  void* memory = nullptr;
  must(table->allocate(0, bytes, &memory), "allocate");
  return static_cast<std::byte*>(memory);
}

struct Case {
  std::string name;
  double bytes = 0;  // read and written by one launch
  std::function<warren_device_code()> launch;
};

// Bytes in a microsecond.
double rate_of(const Case& c, long runs) {
  const double begin = now_us();
  for (long i = 0; i < runs; i++) must(c.launch(), c.name.c_str());
  must(table->record(0, reached, stream), "record");
  warren_device_code code = WARREN_DEVICE_NOT_READY;
  while (code == WARREN_DEVICE_NOT_READY) code = table->query(0, reached);
  must(code, c.name.c_str());
  return c.bytes * static_cast<double>(runs) / (now_us() - begin);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Pieces of these sizes in turn, as many as one launch takes and the buffer has, each at a multiple of 256 bytes.
std::vector<warren_device_piece> cut(std::byte* buffer, std::size_t bytes, const std::vector<std::size_t>& sizes) {
  std::vector<warren_device_piece> pieces;
  for (std::size_t at = 0; pieces.size() < WARREN_DEVICE_MAX_PIECES;) {
    const std::size_t size = sizes[pieces.size() % sizes.size()];
    if (size > bytes - std::min(at, bytes)) break;
    pieces.push_back({buffer + at, size});
    at += (size + 255) / 256 * 256;
  }
  return pieces;
}

double sum_of(const std::vector<warren_device_piece>& pieces) {
  double bytes = 0;
  for (const warren_device_piece& piece : pieces) bytes += static_cast<double>(piece.bytes);
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  const long mb = arguments.number("mb", 256), rounds = arguments.number("rounds", 9);
  const long runs = arguments.number("runs", 20);
  if (mb < 1 || rounds < 1 || runs < 1) fail("--mb, --rounds and --runs are positive");
  const auto library = warren::worker::load_device_library(arguments.text("library", WARREN_CUDA_MODULE));
  if (!library.ok()) fail(library.status().describe());
  table = library.value().table;
  if (table == nullptr) {
    std::printf("no GPU: %s\n", library.value().says.c_str());
    return 0;
  }
  must(table->make_stream(0, &stream), "make_stream");
  must(table->make_event(0, &reached), "make_event");

  const std::size_t bytes = static_cast<std::size_t>(mb) << 20, floats = bytes / 4;
  const auto all = static_cast<double>(bytes);
  std::vector<const void*> in;
  for (int i = 0; i < 8; i++) in.push_back(allocate(bytes));
  std::byte* const first = static_cast<std::byte*>(const_cast<void*>(in[0]));
  std::byte* const out = allocate(bytes + bytes / 8);
  const Case copy{"copy", 2 * all, [&] { return table->copy(0, out, first, bytes, stream); }};

  std::vector<Case> cases;
  const auto reduce = [&](const char* name, std::size_t inputs, warren_type type, std::size_t width) {
    cases.push_back({name, static_cast<double>(inputs + 1) * all, [&in, out, inputs, type, count = bytes / width] {
                       const warren_device_reduction how{inputs, type, WARREN_SUM, WARREN_DEVICE_CHAIN, 0, 0, 1};
                       return table->reduce(0, out, in.data(), count, &how, stream);
                     }});
  };
  reduce("reduce f32, 2 inputs", 2, WARREN_F32, 4);
  reduce("reduce f32, 8 inputs", 8, WARREN_F32, 4);
  reduce("reduce bf16, 8 inputs", 8, WARREN_BF16, 2);
  cases.push_back({"checksum", all,
                   [&] { return table->checksum(0, reinterpret_cast<std::uint64_t*>(out), first, bytes, stream); }});
  const auto convert = [&](const char* name, warren_type to, warren_type from, double narrow_bytes) {
    cases.push_back({name, all + static_cast<double>(floats) * narrow_bytes, [first, out, to, from, floats] {
                       return table->convert(0, out, to, first, from, floats, stream);
                     }});
  };
  convert("f32 to bf16", WARREN_BF16, WARREN_F32, 2);
  convert("bf16 to f32", WARREN_F32, WARREN_BF16, 2);
  convert("f32 to f16", WARREN_F16, WARREN_F32, 2);
  const double block = static_cast<double>(sizeof(warren_device_i8_block)) / WARREN_DEVICE_I8_VALUES;
  convert("f32 to i8", WARREN_I8, WARREN_F32, block);
  convert("i8 to f32", WARREN_F32, WARREN_I8, block);
  const std::size_t even = std::max<std::size_t>(256, bytes / WARREN_DEVICE_MAX_PIECES / 256 * 256);
  // Alike to 16 bytes; to 4, as what follows an odd number of f32 is; of all sizes.
  for (const auto& [name, sizes] : {std::pair<std::string, std::vector<std::size_t>>("even", {even}),
                                    {"by 4", {even - 252}},
                                    {"mixed", {1024, even - 256, 4096, even - 252, 64}}}) {
    const auto pieces = cut(first, bytes, sizes);
    cases.push_back({"pack, " + name, 2 * sum_of(pieces),
                     [pieces, out] { return table->pack(0, out, pieces.data(), pieces.size(), stream); }});
    cases.push_back({"unpack, " + name, 2 * sum_of(pieces),
                     [pieces, out] { return table->unpack(0, out, pieces.data(), pieces.size(), stream); }});
  }

  // On two streams, so that the directions do not wait for each other.
  void* other = nullptr;
  must(table->make_stream(0, &other), "make_stream");
  void *pinned_in = nullptr, *pinned_out = nullptr;
  must(table->allocate_pinned(bytes, &pinned_in), "allocate_pinned");
  must(table->allocate_pinned(bytes, &pinned_out), "allocate_pinned");
  const auto pieces_of = [bytes](const std::function<warren_device_code(std::size_t, std::size_t)>& copies) {
    warren_device_code code = WARREN_DEVICE_OK;
    for (std::size_t at = 0; at < bytes && code == WARREN_DEVICE_OK; at += kPieceBytes) {
      code = copies(at, std::min(kPieceBytes, bytes - at));
    }
    return code;
  };
  const auto up = [&](std::size_t at, std::size_t size) {
    return table->to_device(0, first + at, static_cast<std::byte*>(pinned_in) + at, size, stream);
  };
  const auto down_on = [&](void* on) {
    return [&, on](std::size_t at, std::size_t size) {
      return table->to_host(0, static_cast<std::byte*>(pinned_out) + at, out + at, size, on);
    };
  };
  const std::vector<Case> pinned = {{"to_gpu_gb_s", all, [&] { return pieces_of(up); }},
                                    {"from_gpu_gb_s", all, [&] { return pieces_of(down_on(stream)); }},
                                    // Of each way.
                                    {"both_ways_gb_s", all, [&] {
                                       const auto code = pieces_of([&](std::size_t at, std::size_t size) {
                                         const auto up_code = up(at, size);
                                         return up_code == WARREN_DEVICE_OK ? down_on(other)(at, size) : up_code;
                                       });
                                       if (code != WARREN_DEVICE_OK) return code;
                                       const auto recorded = table->record(0, crossed, other);
                                       return recorded == WARREN_DEVICE_OK ? table->wait_for(0, stream, crossed)
                                                                           : recorded;
                                     }}};
  must(table->make_event(0, &crossed), "make_event");
  std::vector<std::vector<double>> pinned_rates(pinned.size());
  for (long round = -1; round < rounds; round++) {
    for (std::size_t i = 0; i < pinned.size(); i++) {
      const double rate = rate_of(pinned[i], 4);
      if (round >= 0) pinned_rates[i].push_back(rate);
    }
  }

  std::vector<std::vector<double>> rates(cases.size()), ratios(cases.size());
  std::vector<double> copies;
  (void)rate_of(copy, runs);
  for (const Case& c : cases) (void)rate_of(c, 1);
  for (long round = 0; round < rounds; round++) {
    for (std::size_t i = 0; i < cases.size(); i++) {
      const double beside = rate_of(copy, runs);
      copies.push_back(beside);
      rates[i].push_back(rate_of(cases[i], runs));
      ratios[i].push_back(rates[i].back() / beside);
    }
  }
  std::printf("{\"module\": \"%s\", \"mb\": %ld, \"copy_gb_s\": %.1f, ", table->name, mb, median(copies) * 1e-3);
  for (std::size_t i = 0; i < pinned.size(); i++) {
    std::printf("\"%s\": %.1f, ", pinned[i].name.c_str(), median(pinned_rates[i]) * 1e-3);
  }
  std::printf("\"cases\": [");
  for (std::size_t i = 0; i < cases.size(); i++) {
    std::printf("%s\n  {\"name\": \"%s\", \"gb_s\": %.1f, \"of_copy\": %.3f}", i == 0 ? "" : ",", cases[i].name.c_str(),
                median(rates[i]) * 1e-3, median(ratios[i]));
  }
  std::printf("\n]}\n");
  return 0;
}
