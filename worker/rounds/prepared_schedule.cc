#include "worker/rounds/prepared_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "recovery/base/check.h"
#include "worker/rounds/steps.h"

namespace warren::worker {

using schedule::Place;
using schedule::Space;
using schedule::Step;
using schedule::StepKind;

std::vector<InputPiece> input_order(const schedule::Schedule& schedule, std::uint64_t count, std::uint64_t most) {
  std::vector<InputPiece> pieces;
  std::vector<bool> ordered((count + most - 1) / most);
  const auto add = [&](std::uint64_t at, std::uint64_t some) {
    for (std::uint64_t i = at / most; i * most < at + some; i++) {
      if (ordered[i]) continue;
      ordered[i] = true;
      pieces.push_back({i * most, std::min(most, count - i * most)});
    }
  };
  const Space space = input_space(schedule);
  for (const Step& step : schedule.steps) each_input(schedule, space, step, add);
  add(0, count);
  return pieces;
}

PreparedSchedule::PreparedSchedule(schedule::Schedule schedule) : schedule_(std::move(schedule)) {
  const auto& steps = schedule_.steps;
  for (const Step& step : steps) {
    in_order_ = in_order_ && step.kind != StepKind::kCombine;
    largest_ = std::max(largest_, step.count);
  }
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    if (steps[i].turn > turns_.size()) turns_.resize(steps[i].turn);
    if (steps[i].turn != 0) turns_[steps[i].turn - 1].push_back(i);
  }
  find_channels();
  find_sources();
  find_loans();
  find_deliveries();
  find_bypasses();
}

// Sends and receives by peer, each in the order of its messages.
void PreparedSchedule::find_channels() {
  const auto& steps = schedule_.steps;
  std::map<std::int32_t, std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> by_peer;
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    if (steps[i].kind == StepKind::kSend) by_peer[steps[i].peer].first.push_back(i);
    if (steps[i].kind == StepKind::kRecv) by_peer[steps[i].peer].second.push_back(i);
  }
  channel_.assign(steps.size(), 0);
  for (auto& [peer, queues] : by_peer) {
    Channel channel;
    channel.peer = peer;
    const auto append = [&](std::vector<std::uint32_t>& queue) {
      std::sort(queue.begin(), queue.end(),
                [&](std::uint32_t a, std::uint32_t b) { return steps[a].message < steps[b].message; });
      for (std::uint32_t ordinal = 0; ordinal < queue.size(); ordinal++) {
        WARREN_CHECK(steps[queue[ordinal]].message == ordinal, "messages to a peer are numbered without gaps");
        if (steps[queue[ordinal]].turn != 0) continue;
        channel_[queue[ordinal]] = static_cast<std::uint32_t>(channels_.size());
        order_.push_back(queue[ordinal]);
      }
    };
    channel.first_send = static_cast<std::uint32_t>(order_.size());
    append(queues.first);
    channel.end_send = channel.first_recv = static_cast<std::uint32_t>(order_.size());
    append(queues.second);
    channel.end_recv = static_cast<std::uint32_t>(order_.size());
    if (channel.first_send != channel.end_recv) channels_.push_back(channel);
  }
}

void PreparedSchedule::find_deliveries() {
  Ranges read;  // in the output
  for (const Step& step : schedule_.steps) {
    for (const Place* place : {&step.a, &step.b}) {
      if (place->space == Space::kOutput && step.count != 0) read.add(place->at, place->at + step.count);
    }
  }
  for (const Place& place : schedule_.operands) {
    if (place.space == Space::kOutput) read.add(place.at, place.at + largest_);
  }
  delivers_.assign(schedule_.steps.size(), false);
  delivered_.assign(schedule_.steps.size(), false);
  for (std::size_t i = 0; i < schedule_.steps.size(); i++) {
    const Step& step = schedule_.steps[i];
    const std::uint32_t from = sources_[i].a;
    delivers_[i] = step.kind == StepKind::kCopy && step.dst.space == Space::kOutput && !step.finish && from != kNone &&
                   reads_[from] == 1 && step.a.form == Form::kValue && step.a.skip == 0 &&
                   step.count == schedule_.steps[from].count && !read.meets(step.dst.at, step.dst.at + step.count);
    if (delivers_[i]) delivered_[from] = true;
  }
}

void PreparedSchedule::find_bypasses() {
  const auto makes = [this](std::uint32_t i) {
    const Step& step = schedule_.steps[i];
    return published_by_[i] != kNone && (step.kind == StepKind::kCombine || copies_input(step));
  };
  std::set<std::uint32_t> publish;  // what one of these has made
  for (std::uint32_t i = 0; i < schedule_.steps.size(); i++) {
    if (makes(i)) publish.insert(published_by_[i]);
  }
  Ranges read;  // in the output, by others
  for (std::uint32_t i = 0; i < schedule_.steps.size(); i++) {
    const Step& step = schedule_.steps[i];
    if (step.kind == StepKind::kSend && publish.contains(published_by_[i])) {
      // Sends of turns go from the GPU.
      if (step.turn == 0) tells_[published_by_[i]].push_back(i);
    } else if (!publish.contains(i)) {
      for (const Place* place : {&step.a, &step.b}) {
        if (place->space == Space::kOutput && step.count != 0) read.add(place->at, place->at + step.count);
      }
    }
  }
  for (const Place& place : schedule_.operands) {
    if (place.space == Space::kOutput) read.add(place.at, place.at + largest_);
  }
  bypasses_.assign(schedule_.steps.size(), false);
  for (std::uint32_t i = 0; i < schedule_.steps.size(); i++) {
    const Step& step = schedule_.steps[i];
    bypasses_[i] = makes(i) && !read.meets(step.dst.at, step.dst.at + step.count);
  }
}

void PreparedSchedule::find_loans() {
  bool otherwise = false;
  std::set<std::int32_t> peers, gets_copies;
  std::vector<bool> of_copy(schedule_.steps.size(), false);  // publishing steps
  for (std::uint32_t i = 0; i < schedule_.steps.size(); i++) {
    const Step& step = schedule_.steps[i];
    const bool copies = copies_input(step) && published_by_[i] != kNone;
    if (copies) of_copy[published_by_[i]] = true;
    each_input(schedule_, Space::kInput, step, [&](std::uint64_t, std::uint64_t) {
      otherwise = otherwise || (step.kind != StepKind::kCombine && step.kind != StepKind::kSend && !copies);
    });
    if (step.lent && step.count != 0) peers.insert(step.peer);
    const bool sends_copy = step.kind == StepKind::kSend && published_by_[i] != kNone && of_copy[published_by_[i]];
    if (sends_copy) gets_copies.insert(step.peer);
  }
  // A rank that gets it by way of another one reads it on the CPU. Ranks of other hosts get it from there.
  if (std::ranges::includes(gets_copies, schedule_.mates)) {
    peers.insert(schedule_.mates.begin(), schedule_.mates.end());
  }
  if (!otherwise) read_by_.assign(peers.begin(), peers.end());
}

// Scratch slots are used in turn, in the order of steps: an operand comes from the last step before that wrote there.
void PreparedSchedule::find_sources() {
  const auto& steps = schedule_.steps;
  sources_.assign(steps.size(), {});
  reads_.assign(steps.size(), 0);
  published_by_.assign(steps.size(), kNone);
  std::unordered_map<std::uint64_t, std::uint32_t> writers;  // of scratch
  operand_sources_.assign(schedule_.operands.size(), kNone);
  combined_.assign(steps.size(), true);
  hands_on_.assign(steps.size(), false);
  std::vector<bool> made_by_one_step(steps.size(), false);  // publishing steps
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> published, published_input, combined;
  std::vector<bool> forwarded(steps.size(), false);
  const auto source = [&](const Place& place) {
    if (place.space != Space::kScratch) return kNone;
    const auto writer = writers.find(place.at);
    return writer != writers.end() && steps[writer->second].kind == StepKind::kRecv ? writer->second : kNone;
  };
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    const Step& step = steps[i];
    if (step.kind == StepKind::kSend) {
      if (const std::uint32_t from = source(step.a); from != kNone) forwarded[from] = true;
      if (step.a.space == Space::kInput) {
        const auto by = published_input.find({step.a.at, step.count});
        if (by != published_input.end()) published_by_[i] = by->second;
      }
      const auto by = published.find({step.a.at, step.count});
      if (step.a.space == Space::kOutput && by != published.end()) {
        published_by_[i] = by->second;
        hands_on_[i] = step.turn == 0 && step.count != 0 && !made_by_one_step[by->second] &&
                       std::ranges::binary_search(schedule_.mates, step.peer);
      }
    } else if (step.kind == StepKind::kCombine) {
      for (std::uint32_t k = step.first_operand; k < step.first_operand + step.operands; k++) {
        operand_sources_[k] = source(schedule_.operands[k]);
        if (operand_sources_[k] != kNone) reads_[operand_sources_[k]]++;
      }
      if (step.dst.space == Space::kOutput) combined[{step.dst.at, step.count}] = i;
    } else if (is_local(step.kind)) {
      sources_[i].a = source(step.a);
      if (step.kind == StepKind::kReduce) sources_[i].b = source(step.b);
      if (copies_input(step)) combined[{step.dst.at, step.count}] = i;
      for (const std::uint32_t from : {sources_[i].a, sources_[i].b}) {
        if (from == kNone) continue;
        reads_[from]++;
        combined_[from] = false;
      }
    }
    const bool writes = step.kind != StepKind::kSend && step.kind != StepKind::kPublish && !step.is_word;
    if (writes && step.dst.space == Space::kScratch) writers[step.dst.at] = i;
    if (step.kind == StepKind::kPublish && step.a.space == Space::kInput) published_input[{step.a.at, step.count}] = i;
    if (step.kind == StepKind::kPublish && step.a.space == Space::kOutput) {
      published[{step.a.at, step.count}] = i;
      const auto by = combined.find({step.a.at, step.count});
      if (by != combined.end()) published_by_[by->second] = i;
      made_by_one_step[i] = by != combined.end();
    }
  }
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    if (forwarded[i]) reads_[i] = 0;
    // Nobody can take back a published value: it is known to be whole before.
    if (steps[i].kind == StepKind::kPublish && sources_[i].a != kNone) reads_[sources_[i].a] = 0;
  }
}

std::span<const PreparedSchedule::Index> PreparedSchedule::tells(Index publish) const {
  const auto found = tells_.find(publish);
  return found == tells_.end() ? std::span<const Index>() : found->second;
}

}  // namespace warren::worker
