// GPUs in virtual time: buffers of a call that move piece by piece, what is combined there, what ranks of a host read
// in each other (docs/decisions/0023-device-loans.md), and the turns of messages that NCCL moves from one to the other
// (docs/decisions/0024-nccl.md). The engine and the executor are those of production; worker/device is what they have
// there instead of this.
//
// What a GPU does goes on while its process stands still, and ends with it; what the process gives it to do waits. What
// takes longer than the round timeout ends the life. Its memory has addresses that the CPU cannot read, and that which
// is used again has something else in it at once. There is no communicator that does not end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chaos/sim/world.h"
#include "worker/rounds/buffer_moves.h"
#include "worker/rounds/call.h"
#include "worker/rounds/gpu_exchange.h"
#include "worker/rounds/gpu_work.h"

namespace warren::chaos {

// Of one life.
class SimGpu {
 public:
  // `timeout_us`: of a round. `stalls`: some of what it does takes about that, until faults stop. `wakes`: whoever
  // drives the engine is to look.
  SimGpu(World& world, Micros timeout_us, bool stalls, std::function<void()> wakes)
      : world_(world), timeout_us_(timeout_us), stalls_(stalls), wakes_(std::move(wakes)) {}
  SimGpu(const SimGpu&) = delete;
  SimGpu& operator=(const SimGpu&) = delete;

  [[nodiscard]] World& world() { return world_; }
  // Its process is gone, and nothing of it moves any more.
  void vanish() { *gone_ = true; }
  [[nodiscard]] bool gone() const { return *gone_; }
  // Of what may outlive this.
  [[nodiscard]] std::shared_ptr<const bool> is_gone() const { return gone_; }
  // So much later, unless it is gone by then.
  void after(Micros delay_us, std::function<void()> what);
  void wake() { wakes_(); }
  // What a copy or a kernel takes.
  [[nodiscard]] Micros some_us();
  // What has been the next to end since then takes too long.
  [[nodiscard]] Status look_after(Micros since_us);
  // Memory of the CPU, with anything in it.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t bytes);
  // The same of this GPU.
  [[nodiscard]] std::shared_ptr<std::byte> allocate_there(std::size_t bytes);
  // Addresses of any GPU; of what is the CPU's, itself.
  [[nodiscard]] static bool is_there(const std::byte* at);
  [[nodiscard]] static std::byte* readable(std::byte* at);
  [[nodiscard]] static const std::byte* readable(const std::byte* at);

  // Inputs of which something came back from where others read it, and results that were read and did not stand.
  std::uint64_t came_home = 0, fell = 0;
  // Partial results of another host that a kernel went on from; pieces of inputs that were sent to another host, and
  // those that were copied to where others read them.
  std::uint64_t taken_up = 0, sent_on = 0, copied = 0;
  // Finals that came from other hosts, and were brought to where others read them.
  std::uint64_t handed_on = 0;

 private:
  World& world_;
  const Micros timeout_us_;
  const bool stalls_;
  const std::function<void()> wakes_;
  const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);
};

// What a life shares of it with the others of its host: as worker/device/device_shares.h.
class SimShares {
 public:
  SimShares(SimGpu& gpu, bool has_room);
  SimShares(const SimShares&) = delete;
  SimShares& operator=(const SimShares&) = delete;

  // An address in it; null: there is none.
  [[nodiscard]] const std::byte* at() const { return has_room_ ? &at_ : nullptr; }
  // From some time after this was first asked on. Some never map it.
  [[nodiscard]] bool mapped_by(Incarnation life);
  // For an input; null: there is no room.
  [[nodiscard]] std::shared_ptr<std::byte> take(std::size_t bytes);
  // For what is made of inputs, which stands until others have taken its place. As take().
  [[nodiscard]] std::shared_ptr<std::byte> take_result(std::size_t bytes, std::uint64_t& number);
  // So many are being made that there is no room for one more. (What is exchanged would wait for it.)
  [[nodiscard]] bool is_full() const;
  // Keeps the memory of a block mapped, whatever its owner does; null: it is none of a block.
  [[nodiscard]] std::shared_ptr<const void> memory_of(const std::byte* at) const;
  // As a peer finds it that has this mapped; null: it is none of these.
  [[nodiscard]] std::shared_ptr<const worker::FinalOnGpu> find(const worker::MadeOnGpu& made) const;

 private:
  struct Made {
    std::uint64_t number = 0;
    std::size_t bytes = 0;
    std::shared_ptr<std::byte> memory;
    std::weak_ptr<std::byte> block;  // not given back
  };
  static void use_again(std::byte* memory, std::size_t bytes);

  SimGpu& gpu_;
  const bool has_room_;
  const std::byte at_{};
  std::map<Incarnation, std::optional<Micros>> mapped_;  // when
  struct Block {
    std::size_t bytes = 0;
    std::weak_ptr<std::byte> memory;
  };
  std::map<const std::byte*, Block> blocks_;
  const std::size_t most_made_;
  std::uint64_t newest_ = 0;
  std::deque<Made> made_;
  const std::shared_ptr<std::uint64_t> first_ = std::make_shared<std::uint64_t>(0);  // that stands
};

// What its kernels combine.
[[nodiscard]] bool combined_on_gpus(DataType type, ReduceOp op);

// Combines what lies on it.
class SimCombines final : public worker::GpuWork {
 public:
  SimCombines(SimGpu& gpu, SimShares& shares) : gpu_(gpu), shares_(shares) {}

  [[nodiscard]] std::uint64_t begin(Work work) override;
  [[nodiscard]] bool busy() const override { return under_way_ + bringing_ != 0 || !done_.empty(); }
  [[nodiscard]] std::optional<Done> take_done() override;
  // What its process does, unless it stands still.
  [[nodiscard]] Status move();

 private:
  void bring(std::uint64_t id, Work work);

  SimGpu& gpu_;
  SimShares& shares_;
  std::uint64_t newest_ = 0;
  std::size_t under_way_ = 0, bringing_ = 0;
  Micros free_at_us_ = 0, since_us_ = 0, brought_at_us_ = 0, bringing_since_us_ = 0;
  std::deque<Done> done_;
};

// Moves turns among GPUs. Of a peer that is gone it says nothing, and of one that has aborted that all has come.
class SimNccl {
 public:
  // `checksums`: of the job. Without them nobody can tell that what a sender had sent, and said so, was lost with its
  // communicator before the receiver had it: it is not lost then.
  SimNccl(World& world, bool checksums) : world_(world), checks_(checksums) {}
  SimNccl(const SimNccl&) = delete;
  SimNccl& operator=(const SimNccl&) = delete;

  // One rank's end of a message. `done` is called once, or never.
  struct Post {
    SimGpu* gpu = nullptr;
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    bool sends = false;
    std::shared_ptr<const void> keeper = nullptr;
    std::function<void()> done;
  };
  struct Channel {
    std::deque<Post> sends, receives;
  };
  struct Communicator {
    std::vector<SimGpu*> ranks;  // null: has not joined
    std::vector<bool> aborted;
    std::map<std::pair<std::int32_t, std::int32_t>, Channel> channels;  // by sender and receiver
  };
  using Shared = std::shared_ptr<Communicator>;
  using Id = worker::GpuExchange::Word::Id;

  // `ready`: all have joined, and this rank notices.
  [[nodiscard]] Shared join(const Id& id, std::int32_t size, std::int32_t rank, SimGpu& gpu,
                            std::function<void()> ready);
  // `from` or `to` is the rank that posts.
  void post(const Shared& c, std::int32_t from, std::int32_t to, Post post);
  // This rank's messages are not carried any more; those of others with it end at once, whatever they bring.
  void abort(const Shared& c, std::int32_t rank);

 private:
  void carry(const Shared& c, std::int32_t from, std::int32_t to, Post send, Post receive);
  void end_by_abort(Post post);

  struct Joining {
    Shared communicator;
    std::vector<std::pair<SimGpu*, std::function<void()>>> ready;
  };
  World& world_;
  const bool checks_;
  std::map<Id, Joining> joining_;
};

// A life's part in that: one communicator a generation.
class SimExchange final : public worker::GpuExchange {
 public:
  // `timeout_us`: for joining and for a turn. `fails`: turns fail now and then, and bring other bits, until faults
  // stop.
  SimExchange(SimGpu& gpu, SimNccl& nccl, Micros timeout_us, bool checksums, bool fails)
      : gpu_(gpu), nccl_(nccl), timeout_us_(timeout_us), checks_(checksums), fails_(fails) {}

  [[nodiscard]] std::uint64_t rounds_proved() const { return proved_; }

  void open(Generation generation, std::int32_t rank, std::int32_t size) override;
  void close() override;
  [[nodiscard]] std::uint64_t least_bytes() const override { return 0; }
  [[nodiscard]] bool serves(DataType type, ReduceOp op, std::int32_t size) const override;
  [[nodiscard]] std::shared_ptr<std::byte> take_scratch(std::uint64_t bytes, std::uint64_t piece_bytes) override;
  [[nodiscard]] bool ready() const override { return current_ != nullptr && current_->stage == Stage::kReady; }
  [[nodiscard]] Word word(bool could) override;
  void heard(std::span<const Word> words) override;
  void proved() override;
  void distrust(const std::string& why) override;
  [[nodiscard]] std::uint64_t begin(Turn turn) override;
  [[nodiscard]] bool busy() const override { return !turns_.empty() || !done_.empty(); }
  [[nodiscard]] std::optional<Done> take_done() override;
  // What its process does, unless it stands still.
  void move();

 private:
  static constexpr int kMostFailures = 3;
  enum class Stage : std::uint8_t { kJoins, kReady, kFailed };
  struct Current {
    SimNccl::Shared communicator;
    Stage stage = Stage::kJoins, told = Stage::kJoins;
    Micros since_us = 0;
  };
  // Of an earlier generation.
  struct Ending {
    SimNccl::Shared communicator;
    std::int32_t rank = 0;
    Micros aborts_at_us = 0, ended_at_us = 0;
    bool aborted = false;
  };
  struct Open {
    std::uint64_t id = 0;
    Turn turn;
    std::size_t left = 0;  // messages
    bool begun = false;
    Micros since_us = 0;
  };
  [[nodiscard]] bool takes_part() const {
    return open_ && !root_failed_ && ending_.empty() && failures_ < kMostFailures &&
           (current_ == nullptr || current_->stage != Stage::kFailed);
  }
  void begin_next();
  void end_turn();
  void fail_turn(const std::string& why);
  void tell_of(Current& c);
  // move() is to be called by then.
  void look_in(Micros delay_us) {
    gpu_.after(delay_us, [this] { gpu_.wake(); });
  }

  SimGpu& gpu_;
  SimNccl& nccl_;
  const Micros timeout_us_;
  const bool checks_, fails_;
  bool open_ = false;
  std::int32_t rank_ = 0, size_ = 1;
  std::uint64_t newest_ = 0, proved_ = 0;
  std::vector<Ending> ending_;
  int failures_ = 0;  // since a round was proved
  bool root_failed_ = false;
  std::optional<Micros> id_at_us_;
  std::optional<Word::Id> id_;
  std::shared_ptr<Current> current_;
  std::deque<Open> turns_;
  std::deque<Done> done_;
};

// A call whose buffers lie there: as worker/device/streamed_call.h.
class SimGpuCall final : public worker::CallBuffers, public worker::BufferStream {
 public:
  struct Buffer {
    std::byte* there = nullptr;  // on the GPU
    std::byte* host = nullptr;   // where the engine finds it
    std::size_t bytes = 0;
    std::shared_ptr<const void> keeper = nullptr;  // of `host`
  };
  // `shares`: where peers may read the input; null: nowhere.
  SimGpuCall(SimGpu& gpu, SimShares* shares, const Buffer& input, const Buffer& output, std::function<void()> prepare);
  ~SimGpuCall() override;

  // As the call's prepare function.
  void begin_filling();

  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return output_.bytes != 0; }
  [[nodiscard]] Status deliver() override;
  [[nodiscard]] BufferStream* stream() override { return this; }

  [[nodiscard]] std::size_t most_bytes(std::int32_t) const override { return most_bytes_; }
  void order(std::vector<worker::ByteRange> pieces) override { moves_.order(std::move(pieces)); }
  [[nodiscard]] const std::byte* lendable() const override { return shares_ == nullptr ? nullptr : shares_->at(); }
  [[nodiscard]] bool lend() override;
  [[nodiscard]] std::shared_ptr<const std::byte> lent() const override { return moves_.lent(); }
  void bring_home() override { moves_.bring_home(); }
  [[nodiscard]] std::size_t arrived() const override { return moves_.arrived(); }
  [[nodiscard]] bool all_arrived() const override { return moves_.all_arrived(); }
  void landed(const worker::ByteRange& bytes) override { moves_.landed(bytes); }
  [[nodiscard]] bool bring(const worker::ByteRange& bytes, const std::shared_ptr<const worker::FinalOnGpu>& from,
                           std::uint64_t number) override {
    return lendable() != nullptr && moves_.bring(bytes, from, number);
  }
  [[nodiscard]] std::optional<Brought> take_brought() override;
  void result_is_there() override { moves_.result_is_there(); }
  [[nodiscard]] std::shared_ptr<const void> output_keeper() const override { return output_.keeper; }
  void conclude() override { moves_.conclude(); }
  void give_up() override { moves_.give_up(); }
  [[nodiscard]] bool moves() const override { return moves_.moves(); }
  [[nodiscard]] Result<bool> move() override;

 private:
  // What ends in its order, on one stream.
  struct Flow {
    static constexpr std::size_t kRoom = 2;
    std::size_t begun = 0, ended = 0, seen = 0;
    Micros free_at_us = 0, since_us = 0;
    [[nodiscard]] std::size_t under_way() const { return begun - seen; }
    [[nodiscard]] bool has_room() const { return under_way() < kRoom; }
    // So many more have ended.
    [[nodiscard]] std::size_t look(Micros now_us) {
      if (ended != seen) since_us = now_us;
      return ended - std::exchange(seen, ended);
    }
  };
  void copy(Flow& flow, std::byte* to, const std::byte* from, std::size_t bytes, std::shared_ptr<const void> keeper);
  void fill();

  SimGpu& gpu_;
  SimShares* const shares_;
  const Buffer input_, output_;
  const std::function<void()> prepare_;
  const std::size_t most_bytes_;
  const std::shared_ptr<char> there_ = std::make_shared<char>();  // until this ends
  worker::BufferMoves moves_;
  bool comes_home_ = false;
  Status failed_;
  Flow in_, lent_, out_, peers_;
};

}  // namespace warren::chaos
