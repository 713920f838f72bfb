#include "chaos/process/worker.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "chaos/process/records.h"
#include "warren/warren.h"
#include "worker/device/program_gpu.h"

namespace warren::chaos::process {
namespace {

// The kernel kills this process `delay_us` from now, whatever it does then.
void die_in(std::uint64_t delay_us) {
  if (delay_us == 0) {
    kill(getpid(), SIGKILL);
    while (true) pause();
  }
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(delay_us / 1'000'000);
  when.it_value.tv_nsec = static_cast<long>(delay_us % 1'000'000 * 1000);
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, nullptr) != 0) abort();
}

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.describe());
}

// A buffer of a call: of this process's memory, of memory of the communicator's, or on a GPU.
class Bytes {
 public:
  // One of these, or none, and then resize(), once.
  void lie_in(Memory<std::byte> memory) { memory_ = std::move(memory); }
  void lie_on(worker::ProgramGpu& gpu) { gpu_ = &gpu; }
  void resize(std::size_t size) {
    size_ = size;
    if (gpu_ != nullptr) {
      auto taken = gpu_->take(size);
      must(taken.status());
      on_gpu_ = taken.value();
    } else if (memory_.size() == 0) {
      own_.resize(size);
    }
  }
  // No call uses it any more. What was lie_in()'s comes back.
  [[nodiscard]] Memory<std::byte> give_back() {
    if (on_gpu_.host != nullptr) gpu_->give_back(std::exchange(on_gpu_, {}));
    return std::move(memory_);
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  // As this process sees it: what lies on a GPU, when it has been fetched and until it is sent.
  [[nodiscard]] std::byte* data() {
    return on_gpu_.host != nullptr ? on_gpu_.host : memory_.size() == 0 ? own_.data() : memory_.data();
  }
  [[nodiscard]] std::byte* given() { return on_gpu_.device != nullptr ? on_gpu_.device : data(); }
  void send() const {
    if (on_gpu_.host != nullptr) must(gpu_->send(on_gpu_, size_));
  }
  void fetch() const {
    if (on_gpu_.host != nullptr) must(gpu_->fetch(on_gpu_, size_));
  }

 private:
  std::vector<std::byte> own_;
  Memory<std::byte> memory_;
  worker::ProgramGpu* gpu_ = nullptr;
  worker::ProgramGpu::Buffer on_gpu_;
  std::size_t size_ = 0;
};

// A call between its issue and its end: buffers, and how to look at the result.
struct Running {
  Call call;
  std::uint32_t index = 0;
  Bytes in, out;
  bool has_output = true;
  std::uint64_t base = 0;  // of the input
  std::uint64_t prepared = 0;
  std::vector<Handle> handles;
  std::string once{};  // the name of a set-up round
};

class Worker {
 public:
  // `comm`: where the job has spares, and whose life this is shows only when it has joined. `gpu`: of a shape that is
  // on GPUs.
  Worker(const Program& program, std::string folder, RecordWriter records, std::shared_ptr<Page> page,
         std::uint32_t process, std::optional<Communicator> comm, std::unique_ptr<worker::ProgramGpu> gpu)
      : program_(program),
        folder_(std::move(folder)),
        records_(std::move(records)),
        page_(std::move(page)),
        process_(process),
        gpu_(std::move(gpu)),
        comm_(std::move(comm)) {}

  void run(const Options& options) {
    life_ = page_->lives.fetch_add(1);
    page_->process.store(process_);
    page_->pid.store(getpid());
    done_before_ = page_->done.load();
    together_before_ = page_->together.load();
    const std::uint32_t ended_in = page_->phase.load();
    tell(RecordEvent::kStarted, 0, static_cast<std::uint64_t>(getpid()), ended_in);
    enter(Phase::kStarting);
    try {
      if (!comm_) comm_.emplace(Communicator::create(options));
    } catch (const Error& e) {
      // The life before was killed in finalize, after all had entered it: there is nothing left to do.
      if (e.code() != ErrorCode::finished || life_ == 0) throw;
      enter(Phase::kGone);
      return tell(RecordEvent::kFinished);
    }
    rank_ = static_cast<std::uint32_t>(comm_->rank());
    if (gpu_) comm_->use_stream(gpu_->stream());
    state_ = program_.initial(rank_);
    tell(RecordEvent::kJoined, 0, rank_, process_);
    preamble();
    std::uint64_t version = load();
    if (!program_.shape().shrinks()) set_up();
    bool on = true;
    for (std::uint64_t i = program_.first_iteration(version); on; i++) {
      on = iteration(i);
      // Not after the last: whoever loads that version could not know that nothing comes after it.
      if (on && program_.checkpoint_after(i)) checkpoint(++version);
    }
    enter(Phase::kFinalize);
    tell(RecordEvent::kFinalizing);
    comm_->finalize();
    enter(Phase::kGone);
    tell(RecordEvent::kFinished);
  }

  void tell(RecordEvent event, std::uint64_t iteration = 0, std::uint64_t value = 0, std::uint32_t call = 0,
            Contributors contributors = 0) const {
    records_.write({static_cast<std::uint32_t>(event), life_, call, rank_, iteration, value, 0, contributors});
  }

 private:
  void enter(Phase phase) {
    page_->phase.store(static_cast<std::uint32_t>(phase));
    for (Order& order : page_->orders) {
      if (order.phase.load() != static_cast<std::uint32_t>(phase)) continue;
      const std::uint32_t life = order.life.load();
      if ((life != kAnyLife && life != life_) || page_->iteration.load() < order.iteration.load()) continue;
      const std::uint64_t delay_us = order.delay_us.load();
      page_->dies_at_ns.store(monotonic_ns() + delay_us * 1000);
      order.phase.store(0);
      die_in(delay_us);
    }
  }

  void preamble() {
    enter(Phase::kPreamble);
    if (!program_.shape().shrinks()) group_ = comm_->split(static_cast<int>(program_.color(rank_)));
    Running r{program_.preamble(), kPreambleCall, {}, {}, true, 0, 0, {}};
    issue(r, 0);
    end(r);
    tell(RecordEvent::kPreamble, 0, digest(r), 0, contributors(r));
    give_back(r);
  }

  // As a process does that needs a schema before it can go on, in the middle of whatever the others do.
  void set_up() {
    const ProgramState loaded = std::exchange(state_, program_.initial(rank_));
    std::uint32_t number = 0;
    for (const Call& call : program_.setups()) {
      Running r{call, kFirstSetupCall + number, {}, {}, true, 0, 0, {}, "set-up " + std::to_string(number)};
      issue(r, 0);
      end(r);
      tell(RecordEvent::kSetup, 0, digest(r), number++);
      give_back(r);
    }
    state_ = loaded;
  }

  std::uint64_t load() {
    enter(Phase::kLoad);
    const Communicator::Checkpoint loaded = gpu_ ? load_on_gpu() : comm_->load_checkpoint();
    if (loaded.version > 0 && !program_.restore(loaded.global, loaded.local, state_)) {
      throw std::runtime_error("version " + std::to_string(loaded.version) + " has states of " +
                               std::to_string(loaded.global.size()) + " and " + std::to_string(loaded.local.size()) +
                               " bytes");
    }
    tell(RecordEvent::kLoaded, loaded.version, loaded.version == 0 ? 0 : digest_of(loaded.global));
    if (!program_.shape().shrinks())
      tell(RecordEvent::kLoadedLocal, loaded.version, loaded.version == 0 ? 0 : digest_of(loaded.local));
    page_->iteration.store(program_.first_iteration(loaded.version));
    return loaded.version;
  }

  // All states have these sizes.
  Communicator::Checkpoint load_on_gpu() {
    const bool has_local = !program_.shape().shrinks();
    Bytes global = on_gpu(program_.global_state(0, state_)), local;
    std::vector<Place> of_global = {place(global)}, of_local;
    if (has_local) {
      local = on_gpu(program_.local_state(0, rank_, state_));
      of_local.push_back(place(local));
    }
    Communicator::Checkpoint out;
    out.version = comm_->load_checkpoint_into(of_global, of_local).version;
    for (auto [from, to] : {std::pair(&global, &loaded_global_), std::pair(&local, &loaded_local_)}) {
      from->fetch();
      to->assign(from->data(), from->data() + from->size());
      (void)from->give_back();
    }
    out.global = loaded_global_;
    out.local = loaded_local_;
    return out;
  }
  Bytes on_gpu(const std::vector<std::byte>& values) {
    Bytes out;
    out.lie_on(*gpu_);
    out.resize(values.size());
    std::ranges::copy(values, out.data());
    out.send();
    return out;
  }
  static Place place(Bytes& bytes) { return Place(std::span(bytes.given(), bytes.size())); }

  // The states are others as soon as the call has returned.
  void checkpoint_on_gpu(const std::vector<std::byte>& global, const std::vector<std::byte>& local) {
    Bytes all = on_gpu(global), own = on_gpu(local);
    program_.shape().shrinks() ? comm_->checkpoint_places({place(all)})
                               : comm_->checkpoint_places({place(all)}, {place(own)});
    for (Bytes* bytes : {&all, &own}) {
      std::fill_n(bytes->data(), bytes->size(), std::byte{0x5a});
      bytes->send();
      bytes->fetch();  // sent, before it is another's
      (void)bytes->give_back();
    }
  }

  void checkpoint(std::uint64_t version) {
    const std::vector<std::byte> global = program_.global_state(version, state_);
    std::vector<std::byte> local;
    if (!program_.shape().shrinks()) local = program_.local_state(version, rank_, state_);
    enter(Phase::kCheckpoint);
    tell(RecordEvent::kCheckpoint, version);
    if (gpu_ && version % 2 == 0) {
      checkpoint_on_gpu(global, local);
    } else {
      program_.shape().shrinks() ? comm_->checkpoint(global) : comm_->checkpoint(global, local);
    }
    enter(Phase::kCheckpointed);
    tell(RecordEvent::kCheckpointed, version);
    if (comm_->version() != version) {
      throw std::runtime_error("version() is " + std::to_string(comm_->version()) + " after checkpoint " +
                               std::to_string(version));
    }
    enter(Phase::kIdle);
  }

  // Whether to go on.
  bool iteration(std::uint64_t index) {
    page_->iteration.store(index);
    page_->call.store(0);
    enter(Phase::kIdle);
    usleep(program_.shape().compute_ms * 1000);
    const std::vector<Call> calls = program_.iteration(index);
    bool on = program_.shape().iterations == 0 || index + 1 < program_.shape().iterations;
    std::optional<Fusion> fusion;
    std::vector<Running> in_flight;
    in_flight.reserve(calls.size());
    const auto await = [&] {
      for (Running& r : in_flight) finish(index, r);
      in_flight.clear();
    };
    for (std::uint32_t i = 0; i < calls.size(); i++) {
      if (!calls[i].in_flight) await();
      // Messages and calls of groups come outside of a fusion.
      const bool fuses = program_.shape().mix == Mix::kFused && !calls[i].on_group && !calls[i].on_own_group &&
                         calls[i].kind != CallKind::kExchange;
      if (!fuses) fusion.reset();
      // So that several calls fit, and some do not.
      if (fuses && !fusion) fusion.emplace(comm_->fuse(static_cast<std::int64_t>(program_.shape().bytes / 2)));
      Running r{calls[i], i, {}, {}, true, 0, 0, {}};
      prepare(r, index);
      const std::size_t bytes = call_bytes(r.call, program_.shape().ranks);
      page_->call.store(i);
      tell(RecordEvent::kBegin, index, bytes, i);
      enter(position(index, i) < done_before_ ? Phase::kReplay
                                              : (bytes > kBigBytes ? Phase::kBigRound : Phase::kSmallRound));
      start(r);
      if (r.call.in_flight) {
        in_flight.push_back(std::move(r));
      } else {
        finish(index, r);
        if (r.call.decision && *reinterpret_cast<const std::uint64_t*>(r.out.data()) != 0) on = false;
      }
    }
    await();
    return on;
  }

  void issue(Running& r, std::uint64_t iteration) {
    prepare(r, iteration);
    start(r);
  }

  // Its result is there to be looked at.
  static void end(Running& r) {
    for (Handle& h : r.handles) h.wait();
    r.out.fetch();
  }
  void give_back(Running& r) {
    for (Bytes* buffer : {&r.in, &r.out}) {
      if (auto memory = buffer->give_back(); memory.size() != 0) memories_.push_back(std::move(memory));
    }
  }
  // What GPUs have done since the last time, for the run's report.
  void count() {
    if (!gpu_) return;
    const auto add = [](std::atomic<std::uint64_t>& total, std::uint64_t& told, std::uint64_t now) {
      total += now - std::exchange(told, now);
    };
    add(page_->inputs_lent, told_[0], comm_->inputs_lent());
    add(page_->finals_from_gpus, told_[1], comm_->finals_from_gpus());
    add(page_->rounds_exchanged, told_[2], comm_->rounds_exchanged());
  }

  void finish(std::uint64_t iteration, Running& r) {
    end(r);
    count();
    const std::uint64_t value = r.call.decision ? *reinterpret_cast<const std::uint64_t*>(r.out.data()) : digest(r);
    const Contributors there = contributors(r);
    program_.fold(r.call, value, there, state_);
    const std::uint64_t done = position(iteration, r.index) + 1;
    if (page_->done.load() < done) page_->done.store(done);
    if (is_together(r.call) && page_->together.load() < done) page_->together.store(done);
    // A later one was finished, so all ranks had finished this one before.
    const bool replayed = done < together_before_;
    if (r.prepared > 1 || (r.prepared == 1 && replayed)) tell(RecordEvent::kPrepared, iteration, r.prepared, r.index);
    tell(RecordEvent::kResult, iteration, value, r.index, there);
    give_back(r);
    enter(Phase::kIdle);
  }

  // All are of one size.
  Memory<std::byte> memory(std::size_t bytes) {
    if (memories_.empty()) return allocate<std::byte>(*comm_, bytes);
    Memory<std::byte> memory = std::move(memories_.back());
    memories_.pop_back();
    return memory;
  }

  // Nobody finishes it before all ranks have entered it.
  static bool is_together(const Call& call) {
    return !call.on_group && (call.kind == CallKind::kAllreduce || call.kind == CallKind::kAllgather ||
                              call.kind == CallKind::kAllToAll || call.kind == CallKind::kBarrier);
  }

  // Of a call that has finished, and is the newest that was waited for.
  [[nodiscard]] Contributors contributors(const Running& r) const {
    if (!program_.shape().shrinks()) return 0;
    Contributors out = 0;
    for (const int rank : r.handles.empty() ? comm_->contributors() : r.handles.back().contributors()) {
      out |= Contributors{1} << rank;
    }
    return out;
  }

  static std::uint64_t digest(Running& r) {
    return r.has_output ? digest_of(std::as_bytes(std::span(r.out.data(), r.out.size()))) : 0;
  }

  // Fills the input and makes room for the output.
  void prepare(Running& r, std::uint64_t iteration) {
    const std::uint64_t base = r.base = program_.input_base(iteration, r.index, rank_, state_);
    if (gpu_ && !r.call.allocated && !r.call.decision) {
      const Program::Places places = program_.places(iteration, r.index, rank_);
      if (places.in) r.in.lie_on(*gpu_);
      if (places.out) r.out.lie_on(*gpu_);
    }
    switch (r.call.type) {
      case ElementType::kU8: prepare_as<std::uint8_t>(r, base); break;
      case ElementType::kI32: prepare_as<std::int32_t>(r, base); break;
      case ElementType::kI64: prepare_as<std::int64_t>(r, base); break;
      case ElementType::kU64: prepare_as<std::uint64_t>(r, base); break;
      case ElementType::kF32: prepare_as<float>(r, base); break;
      case ElementType::kF64: prepare_as<double>(r, base); break;
    }
    r.in.send();
    if (r.call.in_place || r.call.kind == CallKind::kBroadcast) r.out.send();
  }
  template <class T>
  static void fill(std::span<T> values, const Call& call, std::uint64_t base) {
    for (std::size_t j = 0; j < values.size(); j++) values[j] = input_at<T>(call, base, j);
  }
  template <class T>
  static std::span<T> as(Bytes& bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class T>
  static std::span<T> given(Bytes& bytes) {
    return {reinterpret_cast<T*>(bytes.given()), bytes.size() / sizeof(T)};
  }
  template <class T>
  void prepare_as(Running& r, std::uint64_t base) {
    const Call& c = r.call;
    const std::size_t size = program_.shape().ranks, share = c.count * sizeof(T);
    const auto fill = [&](Bytes& to, std::size_t bytes) {
      to.resize(bytes);
      if (!c.prepares) Worker::fill(as<T>(to), c, base);
    };
    const bool root = c.root == rank_;
    switch (c.kind) {
      case CallKind::kAllreduce:
        if (c.allocated && mixed(base) % 2 == 0) r.in.lie_in(memory(share));
        if (c.allocated && mixed(base + 1) % 2 == 0) r.out.lie_in(memory(share));
        fill(c.in_place ? r.out : r.in, share);
        if (!c.in_place) r.out.resize(share);
        if (c.decision) *reinterpret_cast<std::uint64_t*>(r.out.data()) = stop_wanted() ? 1 : 0;
        break;
      case CallKind::kBroadcast:
        r.out.resize(share);
        if (root) fill(r.out, share);
        if (c.decision) *reinterpret_cast<std::uint64_t*>(r.out.data()) = root && stop_wanted() ? 1 : 0;
        break;
      case CallKind::kAllgather:
        fill(r.in, share);
        r.out.resize(share * size);
        break;
      case CallKind::kReduceScatter:
        fill(r.in, share * size);
        r.out.resize(share);
        break;
      case CallKind::kReduce:
        fill(r.in, share);
        r.out.resize(root ? share : 0);
        r.has_output = root;
        break;
      case CallKind::kGather:
        fill(r.in, share);
        r.out.resize(root ? share * size : 0);
        r.has_output = root;
        break;
      case CallKind::kScatter:
        if (root) fill(r.in, share * size);
        r.out.resize(share);
        break;
      case CallKind::kAllToAll:
        fill(r.in, share * size);
        r.out.resize(share * size);
        break;
      case CallKind::kReduceScatterv:
        fill(r.in, sum_of(counts_to(c, size, 0)) * sizeof(T));
        r.out.resize(uneven_count(c, 0, rank_) * sizeof(T));
        break;
      case CallKind::kAllToAllv:
        fill(r.in, sum_of(counts_to(c, size, rank_)) * sizeof(T));
        r.out.resize(sum_of(counts_from(c, size, rank_)) * sizeof(T));
        break;
      case CallKind::kBarrier: r.has_output = false; break;
      case CallKind::kExchange: {
        const bool apart = c.on_group || c.on_own_group;
        r.has_output = (apart ? program_.members(program_.color(rank_)).size() : size) > 1;
        fill(r.in, share);
        r.out.resize(share);
        break;
      }
    }
  }
  static std::size_t sum_of(const std::vector<std::size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }
  [[nodiscard]] bool stop_wanted() const { return access(stop_path(folder_).c_str(), F_OK) == 0; }

  void start(Running& r) {
    switch (r.call.type) {
      case ElementType::kU8: return start_as<std::uint8_t>(r);
      case ElementType::kI32: return start_as<std::int32_t>(r);
      case ElementType::kI64: return start_as<std::int64_t>(r);
      case ElementType::kU64: return start_as<std::uint64_t>(r);
      case ElementType::kF32: return start_as<float>(r);
      case ElementType::kF64: return start_as<double>(r);
    }
  }
  template <class T>
  void start_as(Running& r) {
    const Call& c = r.call;
    const std::span<T> in = given<T>(r.in), out = given<T>(r.out);
    const Op op = c.op == CallOp::kMax ? Op::max : c.op == CallOp::kAverage ? Op::average : Op::sum;
    const int root = static_cast<int>(c.root);
    std::optional<Communicator> own;
    if (c.on_own_group) own = comm_->split(static_cast<int>(program_.color(rank_)));
    Communicator& comm = own ? *own : c.on_group ? *group_ : *comm_;
    if (c.kind == CallKind::kExchange) {
      const int size = comm.world_size(), next = (comm.rank() + 1) % size, before = (comm.rank() + size - 1) % size;
      if (size == 1) return;
      r.handles.push_back(comm.send_async(in, next));
      if (c.in_flight) {
        r.handles.push_back(comm.recv_async(out, before));
      } else {
        comm.recv(out, before);
        r.handles.back().wait();
      }
      return;
    }
    Calls calls = comm;
    if (!r.once.empty()) calls = calls.once(r.once);
    if (c.wire != CallWire::kNone) calls = calls.wire(c.wire == CallWire::kI8 ? Wire::i8 : Wire::bf16);
    const std::size_t ranks = program_.shape().ranks;
    const std::vector<std::size_t> shares = counts_to(c, ranks, 0), goes = counts_to(c, ranks, rank_),
                                   comes = counts_from(c, ranks, rank_);
    if (c.in_flight) {
      switch (c.kind) {
        case CallKind::kAllreduce:
          r.handles.push_back(c.in_place ? calls.allreduce_async(out, op) : calls.allreduce_async(in, out, op));
          break;
        case CallKind::kBroadcast: r.handles.push_back(calls.broadcast_async(out, root)); break;
        case CallKind::kAllgather: r.handles.push_back(calls.allgather_async(in, out)); break;
        case CallKind::kReduceScatter: r.handles.push_back(calls.reduce_scatter_async(in, out, op)); break;
        case CallKind::kReduce: r.handles.push_back(calls.reduce_async(in, out, root, op)); break;
        case CallKind::kGather: r.handles.push_back(calls.gather_async(in, out, root)); break;
        case CallKind::kScatter: r.handles.push_back(calls.scatter_async(in, out, root)); break;
        case CallKind::kAllToAll: r.handles.push_back(calls.all_to_all_async(in, out)); break;
        case CallKind::kReduceScatterv: r.handles.push_back(calls.reduce_scatterv_async(in, out, shares, op)); break;
        case CallKind::kAllToAllv: r.handles.push_back(calls.all_to_allv_async(in, goes, out, comes)); break;
        case CallKind::kBarrier: r.handles.push_back(calls.barrier_async()); break;
        case CallKind::kExchange: break;  // above
      }
      return;
    }
    switch (c.kind) {
      case CallKind::kAllreduce:
        if (c.prepares) {
          calls.allreduce(out, op, [&] {
            r.prepared++;
            fill(as<T>(r.out), c, r.base);
            r.out.send();
          });
        } else {
          c.in_place ? calls.allreduce(out, op) : calls.allreduce(in, out, op);
        }
        break;
      case CallKind::kBroadcast: calls.broadcast(out, root); break;
      case CallKind::kAllgather: calls.allgather(in, out); break;
      case CallKind::kReduceScatter: calls.reduce_scatter(in, out, op); break;
      case CallKind::kReduce: calls.reduce(in, out, root, op); break;
      case CallKind::kGather: calls.gather(in, out, root); break;
      case CallKind::kScatter: calls.scatter(in, out, root); break;
      case CallKind::kAllToAll: calls.all_to_all(in, out); break;
      case CallKind::kReduceScatterv: calls.reduce_scatterv(in, out, shares, op); break;
      case CallKind::kAllToAllv: calls.all_to_allv(in, goes, out, comes); break;
      case CallKind::kBarrier: calls.barrier(); break;
      case CallKind::kExchange: break;  // above
    }
  }

  const Program& program_;
  const std::string folder_;
  const RecordWriter records_;
  const std::shared_ptr<Page> page_;
  const std::uint32_t process_;
  std::uint32_t life_ = 0, rank_ = 0;
  std::uint64_t done_before_ = 0, together_before_ = 0;
  const std::unique_ptr<worker::ProgramGpu> gpu_;  // ends after the communicator
  std::optional<Communicator> comm_, group_;
  std::vector<Memory<std::byte>> memories_;  // that no call uses
  std::vector<std::byte> loaded_global_, loaded_local_;
  std::array<std::uint64_t, 3> told_{};
  ProgramState state_;
};

int refuse(const Status& why) {
  std::fprintf(stderr, "chaos worker: %s\n", why.describe().c_str());
  return 2;
}

}  // namespace

Status write_shape(const std::string& folder, const ProgramShape& shape) {
  nlohmann::ordered_json j;
  j["seed"] = shape.seed;
  j["ranks"] = shape.ranks;
  j["mix"] = name_of(shape.mix);
  j["bytes"] = shape.bytes;
  j["iterations"] = shape.iterations;
  j["checkpoint_every"] = shape.checkpoint_every;
  j["state_bytes"] = shape.state_bytes;
  j["compute_ms"] = shape.compute_ms;
  j["min_workers"] = shape.min_workers;
  j["on_gpus"] = shape.on_gpus;
  std::ofstream file(shape_path(folder));
  file << j.dump() << std::endl;
  if (!file) return {Code::kUnavailable, "cannot write " + shape_path(folder)};
  return {};
}

Result<ProgramShape> read_shape(const std::string& folder) {
  const auto damaged = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, shape_path(folder) + ": " + why);
  };
  std::ifstream file(shape_path(folder));
  const auto j = nlohmann::json::parse(file, nullptr, false);
  if (!j.is_object()) return damaged("not there, or no shape of a chaos program");
  const auto number = [&](const char* name, std::uint64_t least, std::uint64_t most) -> std::optional<std::uint64_t> {
    const auto at = j.find(name);
    if (at == j.end() || !at->is_number_unsigned()) return std::nullopt;
    const auto v = at->get<std::uint64_t>();
    return v >= least && v <= most ? std::optional(v) : std::nullopt;
  };
  const auto seed = number("seed", 0, UINT64_MAX), ranks = number("ranks", 1, 16),
             bytes = number("bytes", 8, std::uint64_t{1} << 32), iterations = number("iterations", 0, UINT32_MAX),
             every = number("checkpoint_every", 1, UINT32_MAX),
             state = number("state_bytes", 16, std::uint64_t{1} << 32), compute = number("compute_ms", 0, 1'000'000),
             least = number("min_workers", 0, ranks.value_or(0));
  const auto mix = j.find("mix");
  const auto known = mix != j.end() && mix->is_string() ? mix_named(mix->get<std::string>()) : std::nullopt;
  const auto on_gpus = j.find("on_gpus");
  if (on_gpus == j.end() || !on_gpus->is_boolean()) return damaged("on_gpus is no truth value");
  if (!seed || !ranks || !bytes || !iterations || !every || !state || !compute || !least || !known)
    return damaged("a value is out of range");
  return ProgramShape{*seed,
                      static_cast<std::uint32_t>(*ranks),
                      *known,
                      static_cast<std::size_t>(*bytes),
                      *iterations,
                      *every,
                      static_cast<std::size_t>(*state),
                      static_cast<std::uint32_t>(*compute),
                      static_cast<std::uint32_t>(*least),
                      on_gpus->get<bool>()};
}

int run_worker(const std::string& folder) {
  auto shape = read_shape(folder);
  if (!shape.ok()) return refuse(shape.status());
  const char* text = std::getenv("WARREN_WORKER_ID");
  const std::string_view id = text == nullptr ? "" : text;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  const bool spares = std::getenv("WARREN_SPARES") != nullptr;
  if (id.empty() || error != std::errc() || end != id.data() + id.size() ||
      (number >= shape.value().ranks && !spares)) {
    return refuse({Code::kInvalidArgument, "WARREN_WORKER_ID is no number of a worker; start this with `warren run`"});
  }
  const std::uint32_t process = number;
  std::unique_ptr<worker::ProgramGpu> gpu;
  if (shape.value().on_gpus) {
    auto opened = worker::ProgramGpu::open(process, shape.value().ranks);
    if (!opened.ok()) return refuse(opened.status());
    gpu = std::move(opened).value();
  }
  std::optional<Communicator> comm;
  if (spares) {
    auto gate = map_page(gate_path(folder, process));
    if (!gate.ok()) return refuse(gate.status());
    wait_until_let_in(*gate.value());
    try {
      comm.emplace(Communicator::create(Options()));
    } catch (const Error& e) {
      std::fprintf(stderr, "chaos worker %u failed: %s\n", number, e.what());
      return 1;
    }
    number = static_cast<std::uint32_t>(comm->rank());
  }
  auto records = RecordWriter::open(records_path(folder, number));
  auto page = map_page(page_path(folder, number));
  if (!records.ok()) return refuse(records.status());
  if (!page.ok()) return refuse(page.status());
  wait_until_let_in(*page.value());
  const Program program(shape.value());
  // A life that is started after the end is to say so itself, instead of being ended by the library.
  unsetenv("WARREN_ATTEMPT");
  Options options;
  Worker worker(program, folder, std::move(records).value(), std::move(page).value(), process, std::move(comm),
                std::move(gpu));
  try {
    worker.run(options);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "chaos worker %u failed: %s\n", number, e.what());
    worker.tell(RecordEvent::kFailed, 0, static_cast<std::uint64_t>(e.code()));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "chaos worker %u failed: %s\n", number, e.what());
    worker.tell(RecordEvent::kFailed);
  }
  return 1;
}

}  // namespace warren::chaos::process
