#include "chaos/sim/sim_gpu.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "recovery/base/check.h"
#include "worker/kernels/reduce.h"

namespace warren::chaos {
namespace {

// No processor reads such an address.
constexpr std::size_t kThere = std::size_t{1} << 60;

}  // namespace

using worker::ByteRange;

void SimGpu::after(Micros delay_us, std::function<void()> what) {
  world_.after(delay_us, [this, what = std::move(what)] {
    if (!gone()) what();
  });
}

// Now and then as long as something that others wait for.
Micros SimGpu::some_us() {
  if (stalls_ && !world_.is_calm() && world_.random.chance(0.003)) {
    return world_.random.between(timeout_us_ / 8, timeout_us_ + timeout_us_ / 4);
  }
  return world_.random.chance(0.02) ? world_.random.between(1000, 30'000) : world_.random.between(1, 300);
}

std::shared_ptr<std::byte> SimGpu::allocate(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
  std::fill_n(memory.get(), bytes, std::byte{0x77});
  return memory;
}

std::shared_ptr<std::byte> SimGpu::allocate_there(std::size_t bytes) {
  auto memory = allocate(std::max<std::size_t>(1, bytes));
  std::byte* const at = memory.get() + kThere;
  return {at, [memory = std::move(memory)](std::byte*) {}};
}

bool SimGpu::is_there(const std::byte* at) {
  return (reinterpret_cast<std::uintptr_t>(at) & std::uintptr_t{kThere}) != 0;
}

std::byte* SimGpu::readable(std::byte* at) {
  return is_there(at) ? at - kThere : at;
}

const std::byte* SimGpu::readable(const std::byte* at) {
  return readable(const_cast<std::byte*>(at));
}

Status SimGpu::look_after(Micros since_us) {
  const Micros for_us = world_.now_us() - since_us;
  if (for_us < timeout_us_) {
    if (stalls_) after(timeout_us_ - for_us, wakes_);
    return {};
  }
  return {Code::kTimeout, "a GPU has done nothing in the round timeout"};
}

// --- What is shared

SimShares::SimShares(SimGpu& gpu, bool has_room)
    : gpu_(gpu), has_room_(has_room), most_made_(1 + gpu.world().random.below(4)) {}

void SimShares::use_again(std::byte* memory, std::size_t bytes) {
  std::fill_n(SimGpu::readable(memory), bytes, std::byte{0x5b});
}

bool SimShares::mapped_by(Incarnation life) {
  World& world = gpu_.world();
  const auto [it, fresh] = mapped_.try_emplace(life);
  if (fresh && world.random.chance(0.98)) it->second = world.now_us() + world.random.between(0, 20'000);
  return it->second && world.now_us() >= *it->second;
}

// The block is free as soon as its owner's last use of it has ended, whoever else reads its memory.
std::shared_ptr<std::byte> SimShares::take(std::size_t bytes) {
  if (!has_room_ || gpu_.world().random.chance(0.03)) return nullptr;
  auto memory = gpu_.allocate_there(bytes);
  std::erase_if(blocks_, [](const auto& block) { return block.second.memory.expired(); });
  std::byte* const at = memory.get();
  blocks_[at] = {bytes, memory};
  return {at, [gone = gpu_.is_gone(), memory = std::move(memory), bytes](std::byte* block) {
            // With its owner's death it is nobody's, and stays as long as others have it mapped.
            if (!*gone) use_again(block, bytes);
          }};
}

std::shared_ptr<std::byte> SimShares::take_result(std::size_t bytes, std::uint64_t& number) {
  WARREN_CHECK(has_room_, "who reads anything of others has some of its own");
  for (; made_.size() >= most_made_ && made_.front().block.expired(); made_.pop_front()) {
    if (!gpu_.world().is(Mutant::trusts_made)) *first_ = made_.front().number + 1;
    use_again(made_.front().memory.get(), made_.front().bytes);
  }
  Made& made = made_.emplace_back(Made{++newest_, bytes, gpu_.allocate_there(bytes), {}});
  number = made.number;
  std::shared_ptr<std::byte> block(made.memory.get(), [memory = made.memory](std::byte*) {});
  made.block = block;
  return block;
}

bool SimShares::is_full() const {
  const auto making = std::ranges::count_if(made_, [](const Made& made) { return !made.block.expired(); });
  return static_cast<std::size_t>(making) > most_made_;
}

std::shared_ptr<const void> SimShares::memory_of(const std::byte* at) const {
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return nullptr;
  const auto& [begin, block] = *--next;
  return at - begin < static_cast<std::ptrdiff_t>(block.bytes) ? block.memory.lock() : nullptr;
}

std::shared_ptr<const worker::FinalOnGpu> SimShares::find(const worker::MadeOnGpu& made) const {
  const auto found = std::ranges::find(made_, made.number, &Made::number);
  if (found == made_.end() || found->memory.get() != made.at) return nullptr;
  return std::make_shared<const worker::FinalOnGpu>(
      worker::FinalOnGpu{made.at, made.number, first_.get(), found->memory, first_});
}

// --- Combines

bool combined_on_gpus(DataType type, ReduceOp op) {
  const bool floats = type == DataType::kF32 || type == DataType::kF16 || type == DataType::kBF16;
  return floats && (op == ReduceOp::kSum || op == ReduceOp::kProduct || op == ReduceOp::kMin || op == ReduceOp::kMax ||
                    op == ReduceOp::kAverage);
}

std::uint64_t SimCombines::begin(Work work) {
  const std::uint64_t id = ++newest_;
  if (work.copies && !work.operands.front().on_gpu) {
    bring(id, std::move(work));
    return id;
  }
  if (under_way_++ == 0) since_us_ = gpu_.world().now_us();
  free_at_us_ = std::max(free_at_us_, gpu_.world().now_us()) + gpu_.some_us();
  // Where there is no room, or something lies where a kernel cannot read it, the CPU combines what it gets of them.
  const bool all = std::ranges::all_of(work.operands, [](const Operand& o) { return o.at != nullptr; });
  const bool makes = work.operands.size() > 1 || work.copies;
  const bool by_kernel = makes && all && (work.stays || (!shares_.is_full() && !gpu_.world().random.chance(0.05)));
  WARREN_CHECK(by_kernel || !work.stays, "what is exchanged lies on the GPU");
  std::uint64_t number = 0;
  std::shared_ptr<std::byte> block;
  const bool finishes = work.made_form == worker::Form::kValue;
  if (by_kernel) block = finishes ? shares_.take_result(work.made_bytes, number) : shares_.take(work.made_bytes);
  if (block != nullptr && !work.operands.front().on_gpu) ++gpu_.taken_up;
  if (work.copies) ++gpu_.copied;
  if (!makes) ++gpu_.sent_on;
  gpu_.after(free_at_us_ - gpu_.world().now_us(),
             [this, id, number, finishes, block = std::move(block), work = std::move(work)] {
               --under_way_;
               since_us_ = gpu_.world().now_us();
               Done done;
               done.id = id;
               if (block != nullptr) {
                 std::vector<const void*> operands;
                 for (const Operand& operand : work.operands) operands.push_back(SimGpu::readable(operand.at));
                 const auto on_cpu = gpu_.allocate(work.made_bytes);
                 if (work.copies) {
                   std::memcpy(on_cpu.get(), operands.front(), work.made_bytes);
                 } else {
                   const auto reducer = worker::Reducer::make(work.type, work.op, work.contributors);
                   WARREN_CHECK(reducer.ok(), "the round has one, too");
                   const Status combined = reducer.value().combine(on_cpu.get(), work.made_form, operands,
                                                                   work.first_form, work.bracketing, work.count);
                   WARREN_CHECK(combined.ok(), "kernels do not fail");
                 }
                 std::memcpy(SimGpu::readable(block.get()), on_cpu.get(), work.made_bytes);
                 done.made = on_cpu.get();
                 done.memory = on_cpu;
                 if (finishes) {
                   done.on_gpu = {block.get(), number};
                   done.here = shares_.find(done.on_gpu);
                 }
                 if (work.stays) done.stays = block;
               } else {
                 const auto there = static_cast<std::size_t>(std::ranges::count(work.operands, true, &Operand::on_gpu));
                 const auto on_cpu = gpu_.allocate(there * work.bytes);
                 std::byte* to = on_cpu.get();
                 for (const Operand& operand : work.operands) {
                   done.operands.push_back(operand.on_gpu ? to : nullptr);
                   if (!operand.on_gpu) continue;
                   std::memcpy(to, SimGpu::readable(operand.at), work.bytes);
                   to += work.bytes;
                 }
                 done.memory = on_cpu;
               }
               done_.push_back(std::move(done));
               gpu_.wake();
             });
  return id;
}

// On a stream of its own.
void SimCombines::bring(std::uint64_t id, Work work) {
  std::uint64_t number = 0;
  std::shared_ptr<std::byte> block;
  if (!shares_.is_full() && !gpu_.world().random.chance(0.05)) block = shares_.take_result(work.bytes, number);
  if (block != nullptr) ++gpu_.handed_on;
  if (bringing_++ == 0) bringing_since_us_ = gpu_.world().now_us();
  brought_at_us_ = std::max(brought_at_us_, gpu_.world().now_us()) + gpu_.some_us();
  Done done;
  done.id = id;
  if (block != nullptr) done.on_gpu = {block.get(), number};
  const auto tell = [this, done] {
    done_.push_back(done);
    gpu_.wake();
  };
  const bool early = gpu_.world().is(Mutant::told_too_early);
  if (early) tell();
  gpu_.after(brought_at_us_ - gpu_.world().now_us(), [this, block, early, tell, work = std::move(work)] {
    --bringing_;
    bringing_since_us_ = gpu_.world().now_us();
    if (block != nullptr) std::memcpy(SimGpu::readable(block.get()), work.operands.front().at, work.bytes);
    if (!early) tell();
  });
}

Status SimCombines::move() {
  if (gpu_.gone()) return {};
  Status status = under_way_ == 0 ? Status() : gpu_.look_after(since_us_);
  if (status.ok() && bringing_ != 0) status = gpu_.look_after(bringing_since_us_);
  return status;
}

std::optional<worker::GpuWork::Done> SimCombines::take_done() {
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

// --- NCCL

SimNccl::Shared SimNccl::join(const Id& id, std::int32_t size, std::int32_t rank, SimGpu& gpu,
                              std::function<void()> ready) {
  Joining& joining = joining_[id];
  if (joining.communicator == nullptr) {
    joining.communicator = std::make_shared<Communicator>();
    joining.communicator->ranks.resize(static_cast<std::size_t>(size));
    joining.communicator->aborted.resize(static_cast<std::size_t>(size));
  }
  const Shared c = joining.communicator;
  SimGpu*& place = c->ranks.at(static_cast<std::size_t>(rank));
  WARREN_CHECK(place == nullptr, "an id is of one generation, in which a rank joins once");
  place = &gpu;
  joining.ready.emplace_back(&gpu, std::move(ready));
  if (std::ranges::count(c->ranks, nullptr) == 0) {
    for (auto& [who, notices] : joining.ready) who->after(world_.random.between(50, 20'000), std::move(notices));
    joining_.erase(id);
  }
  return c;
}

void SimNccl::post(const Shared& c, std::int32_t from, std::int32_t to, Post post) {
  const std::int32_t peer = post.sends ? to : from;
  if (c->aborted[static_cast<std::size_t>(peer)]) return end_by_abort(std::move(post));
  Channel& channel = c->channels[{from, to}];
  (post.sends ? channel.sends : channel.receives).push_back(std::move(post));
  if (channel.sends.empty() || channel.receives.empty()) return;
  Post send = std::move(channel.sends.front()), receive = std::move(channel.receives.front());
  channel.sends.pop_front();
  channel.receives.pop_front();
  carry(c, from, to, std::move(send), std::move(receive));
}

// The sender's part ends before the receiver's: the bytes wait in memory that goes with the sender's communicator.
void SimNccl::carry(const Shared& c, std::int32_t from, std::int32_t to, Post send, Post receive) {
  if (send.bytes != receive.bytes) {
    return world_.violated("Exchange", "ranks " + std::to_string(from) + " and " + std::to_string(to) + " move " +
                                           std::to_string(send.bytes) + " and " + std::to_string(receive.bytes) +
                                           " bytes");
  }
  const auto aborted = [c](std::int32_t rank) { return static_cast<bool>(c->aborted[static_cast<std::size_t>(rank)]); };
  const Micros sends_us = send.gpu->some_us();
  world_.after(sends_us, [this, aborted, from, to, send = std::move(send), receive = std::move(receive)] {
    // Who is gone sends nothing more; of who has aborted anything comes.
    if (send.gpu->gone()) return;
    auto bytes = std::make_shared<std::vector<std::byte>>(send.at, send.at + send.bytes);
    const bool sent = !aborted(from);
    if (sent && !aborted(to)) send.done();
    if (sent && aborted(to)) end_by_abort(send);
    if (!sent) {
      if (!aborted(to)) end_by_abort(receive);
      return;
    }
    world_.after(receive.gpu->some_us(), [this, aborted, from, to, bytes, send, receive] {
      if (receive.gpu->gone() || aborted(to)) return;
      // What the sender had sent may have been taken by then, or not.
      if (checks_ && aborted(from) && world_.random.chance(0.5)) return end_by_abort(receive);
      if (send.gpu->gone() && world_.random.chance(0.5)) return;
      std::copy(bytes->begin(), bytes->end(), receive.at);
      receive.done();
    });
  });
}

void SimNccl::end_by_abort(Post post) {
  SimGpu& gpu = *post.gpu;
  gpu.after(world_.random.between(1, 2000), [this, post = std::move(post)] {
    // Some of it, all of what came before, or nothing.
    if (!post.sends && world_.random.chance(0.7)) std::fill_n(post.at, post.bytes / 2, std::byte{0x3f});
    post.done();
  });
}

void SimNccl::abort(const Shared& c, std::int32_t rank) {
  c->aborted[static_cast<std::size_t>(rank)] = true;
  for (auto& [ends, channel] : c->channels) {
    if (ends.first != rank && ends.second != rank) continue;
    // Its own are dropped, with what they keep.
    auto& others = ends.first == rank ? channel.receives : channel.sends;
    for (Post& post : others) {
      if (!post.gpu->gone()) end_by_abort(std::move(post));
    }
    channel.sends.clear();
    channel.receives.clear();
  }
}

// --- A life's part in it

void SimExchange::open(Generation generation, std::int32_t rank, std::int32_t size) {
  (void)generation;
  open_ = true;
  rank_ = rank;
  size_ = size;
  root_failed_ = false;
}

// Revoked and aborted some time later, and all that while what it reads and writes stays where it is.
void SimExchange::close() {
  open_ = false;
  id_at_us_ = std::nullopt;
  id_ = std::nullopt;
  turns_.clear();
  done_.clear();
  if (current_ == nullptr) return;
  if (current_->stage != Stage::kJoins) tell_of(*current_);
  World& world = gpu_.world();
  Ending ending;
  ending.communicator = std::exchange(current_, nullptr)->communicator;
  ending.rank = rank_;
  ending.aborts_at_us = world.now_us() + world.random.between(10, 5000);
  ending.ended_at_us = ending.aborts_at_us + world.random.between(10, 20'000);
  look_in(ending.aborts_at_us - world.now_us());
  look_in(ending.ended_at_us - world.now_us());
  ending_.push_back(std::move(ending));
}

void SimExchange::move() {
  const Micros now_us = gpu_.world().now_us();
  for (Ending& ending : ending_) {
    if (now_us < ending.aborts_at_us || std::exchange(ending.aborted, true)) continue;
    nccl_.abort(ending.communicator, ending.rank);
  }
  std::erase_if(ending_, [&](const Ending& e) { return e.aborted && now_us >= e.ended_at_us; });
  if (current_ != nullptr && current_->stage == Stage::kJoins && now_us - current_->since_us >= timeout_us_)
    current_->stage = Stage::kFailed;
  while (!turns_.empty()) {
    const Open& turn = turns_.front();
    if (!turn.begun) {
      begin_next();
    } else if (turn.left == 0) {
      end_turn();
    } else if (now_us - turn.since_us >= timeout_us_) {
      fail_turn("nothing has come of a turn");
    } else {
      return;
    }
  }
}

bool SimExchange::serves(DataType type, ReduceOp op, std::int32_t size) const {
  return combined_on_gpus(type, op) && size > 1;
}

std::shared_ptr<std::byte> SimExchange::take_scratch(std::uint64_t bytes, std::uint64_t piece_bytes) {
  (void)piece_bytes;
  if (gpu_.world().random.chance(0.03)) return nullptr;
  return gpu_.allocate_there(bytes);
}

worker::GpuExchange::Word SimExchange::word(bool could) {
  if (current_ != nullptr) tell_of(*current_);
  Word word;
  word.ready = could && ready() && open_;
  word.takes_part = takes_part();
  if (!word.takes_part || ready() || rank_ != 0) return word;
  // Its root takes a while to be started, and now and then is not.
  World& world = gpu_.world();
  if (!id_at_us_) id_at_us_ = world.now_us() + world.random.between(0, 10'000);
  if (!id_ && world.now_us() >= *id_at_us_) {
    if (fails_ && !world.is_calm() && world.random.chance(0.1)) {
      root_failed_ = true;
      ++failures_;
      word.takes_part = false;
      return word;
    }
    id_.emplace();
    for (std::size_t at = 0; at < id_->size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t drawn = world.random.next();
      std::memcpy(id_->data() + at, &drawn, sizeof drawn);
    }
  }
  word.id = id_;
  return word;
}

void SimExchange::heard(std::span<const Word> words) {
  if (!open_ || current_ != nullptr || !words[0].id || !std::ranges::all_of(words, &Word::takes_part)) return;
  current_ = std::make_shared<Current>();
  current_->since_us = gpu_.world().now_us();
  const std::weak_ptr<Current> mine = current_;
  current_->communicator = nccl_.join(*words[0].id, size_, rank_, gpu_, [mine] {
    if (const auto current = mine.lock(); current != nullptr && current->stage == Stage::kJoins)
      current->stage = Stage::kReady;
  });
  look_in(timeout_us_);
}

// Once that it has failed, as the log of production says it.
void SimExchange::tell_of(Current& c) {
  if (c.stage == c.told) return;
  c.told = c.stage;
  if (c.stage == Stage::kFailed) ++failures_;
}

void SimExchange::proved() {
  ++proved_;
  failures_ = 0;
}

void SimExchange::distrust(const std::string& why) {
  (void)why;
  if (current_ != nullptr) current_->stage = Stage::kFailed;
}

std::uint64_t SimExchange::begin(Turn turn) {
  turns_.push_back({++newest_, std::move(turn), 0, false, 0});
  gpu_.wake();
  return newest_;
}

// One after the other, on a stream of their own.
void SimExchange::begin_next() {
  Open& open = turns_.front();
  open.begun = true;
  open.left = open.turn.size();
  World& world = gpu_.world();
  open.since_us = world.now_us();
  if (current_ == nullptr || current_->stage != Stage::kReady) return fail_turn("it has failed before");
  if (fails_ && !world.is_calm() && world.random.chance(0.01)) return fail_turn("an error was injected");
  look_in(timeout_us_);
  for (const Message& m : open.turn) {
    std::byte* const at = SimGpu::readable(m.at);
    SimNccl::Post post{&gpu_, at, m.bytes, m.sends, m.keeper, [this, id = open.id, m, at] {
                         World& w = gpu_.world();
                         const bool flips = fails_ && checks_ && !m.sends && m.bytes > 0 && !w.is_calm();
                         if (flips && w.random.chance(0.002)) at[w.random.below(m.bytes)] ^= std::byte{4};
                         if (turns_.empty() || turns_.front().id != id) return;
                         --turns_.front().left;
                         gpu_.wake();
                       }};
    nccl_.post(current_->communicator, m.sends ? rank_ : m.peer, m.sends ? m.peer : rank_, std::move(post));
  }
}

void SimExchange::end_turn() {
  const Open open = std::move(turns_.front());
  turns_.pop_front();
  Done done;
  done.id = open.id;
  std::size_t bytes = 0;
  for (const Message& m : open.turn) bytes += m.to_cpu ? m.bytes : 0;
  const auto memory = gpu_.allocate(bytes);
  std::byte* to = memory.get();
  const bool compares = checks_ && !gpu_.world().is(Mutant::trusts_nccl);
  for (const Message& m : open.turn) {
    done.checksums.push_back(compares ? XXH3_64bits(SimGpu::readable(m.at), m.bytes) : 0);
    done.on_cpu.push_back(m.to_cpu ? to : nullptr);
    if (!m.to_cpu) continue;
    std::memcpy(to, SimGpu::readable(m.at), m.bytes);
    to += m.bytes;
  }
  done.memory = memory;
  done_.push_back(std::move(done));
}

void SimExchange::fail_turn(const std::string& why) {
  if (current_ != nullptr) current_->stage = Stage::kFailed;
  Done done;
  done.id = turns_.front().id;
  done.status = Status(Code::kPeerLost, "NCCL has not moved messages among GPUs: " + why);
  done.on_cpu.resize(turns_.front().turn.size(), nullptr);
  done.checksums.resize(turns_.front().turn.size(), 0);
  turns_.pop_front();
  done_.push_back(std::move(done));
}

std::optional<worker::GpuExchange::Done> SimExchange::take_done() {
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

// --- A call's buffers

SimGpuCall::SimGpuCall(SimGpu& gpu, SimShares* shares, const Buffer& input, const Buffer& output,
                       std::function<void()> prepare)
    : gpu_(gpu),
      shares_(shares),
      input_(input),
      output_(output),
      prepare_(std::move(prepare)),
      most_bytes_(static_cast<std::size_t>(1024 << gpu.world().random.below(6))),
      moves_({input.host, input.bytes}, {output.host, output.bytes}, most_bytes_ > 4096 ? output.bytes / 4 : 1) {}

SimGpuCall::~SimGpuCall() {
  if (!gpu_.gone() && failed_.ok() &&
      in_.under_way() + lent_.under_way() + out_.under_way() + peers_.under_way() != 0) {
    gpu_.world().violated("I6", "a call has ended while its buffers move");
  }
}

void SimGpuCall::copy(Flow& flow, std::byte* to, const std::byte* from, std::size_t bytes,
                      std::shared_ptr<const void> keeper) {
  if (flow.under_way() == 0) flow.since_us = gpu_.world().now_us();
  ++flow.begun;
  flow.free_at_us = std::max(flow.free_at_us, gpu_.world().now_us()) + gpu_.some_us();
  gpu_.after(flow.free_at_us - gpu_.world().now_us(),
             [this, &flow, to, from, bytes, keeper = std::move(keeper), there = std::weak_ptr<char>(there_)] {
               if (there.expired()) return;
               std::memmove(SimGpu::readable(to), SimGpu::readable(from), bytes);
               ++flow.ended;
               gpu_.wake();
             });
}

void SimGpuCall::begin_filling() {
  if (prepare_) prepare_();
  moves_.begin();
  fill();
}

Status SimGpuCall::deliver() {
  WARREN_UNREACHABLE("a stream is moved");
}

bool SimGpuCall::lend() {
  auto block = shares_->take(input_.bytes);
  if (block == nullptr) return false;
  moves_.lend(std::move(block));
  return true;
}

std::optional<SimGpuCall::Brought> SimGpuCall::take_brought() {
  const auto brought = moves_.take_brought();
  if (brought && !brought->stood) ++gpu_.fell;
  return brought;
}

void SimGpuCall::fill() {
  const auto has_room = [this](bool by_block) { return (by_block ? lent_ : in_).has_room(); };
  while (const auto next = moves_.next_input(most_bytes_, has_room)) {
    const ByteRange& piece = next->bytes;
    std::byte* const block = next->block.get();
    Flow& flow = block == nullptr ? in_ : lent_;
    if (next->home) {
      if (!std::exchange(comes_home_, true)) ++gpu_.came_home;
      copy(flow, input_.host + piece.at, block + piece.at, piece.bytes, next->block);
    } else {
      copy(flow, (block == nullptr ? input_.host : block) + piece.at, input_.there + piece.at, piece.bytes,
           next->block);
    }
  }
}

Result<bool> SimGpuCall::move() {
  if (gpu_.gone()) {
    moves_.abandon();
    for (Flow* flow : {&in_, &lent_, &out_, &peers_}) flow->seen = flow->ended = flow->begun;
    return true;
  }
  if (!failed_.ok()) return failed_;
  const Micros now_us = gpu_.world().now_us();
  const worker::BufferMoves::Ended ended{in_.look(now_us), lent_.look(now_us), out_.look(now_us), peers_.look(now_us)};
  for (const Flow* flow : {&in_, &lent_, &out_, &peers_}) {
    if (flow->under_way() == 0) continue;
    failed_ = gpu_.look_after(flow->since_us);
    if (failed_.ok()) continue;
    moves_.abandon();
    return failed_;
  }
  const bool some = ended.inputs + ended.by_block + ended.finals + ended.from_peers != 0;
  if (some) moves_.came(ended);
  fill();
  while (const auto next = moves_.next_from_peer(most_bytes_, [this] { return peers_.has_room(); })) {
    copy(peers_, output_.there + next->bytes.at, next->from->at, next->bytes.bytes, next->from);
  }
  while (const auto next = moves_.next_final(most_bytes_, [this] { return out_.has_room(); })) {
    copy(out_, output_.there + next->at, output_.host + next->at, next->bytes, nullptr);
  }
  return some;
}

}  // namespace warren::chaos
