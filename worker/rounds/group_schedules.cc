#include "worker/rounds/group_schedules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/rounds/light_round.h"
#include "worker/schedule/copies.h"

namespace warren::worker {
namespace {

// Bytes of the larger of one rank's two buffers: what the choice of an algorithm goes by.
std::uint64_t larger_buffer(const CallSpec& spec, std::uint64_t size) {
  const std::uint64_t width = element_bytes(spec);
  switch (spec.collective) {
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll: return spec.count * size * width;
    case Collective::kAllgatherv:
    case Collective::kReduceScatterv: {
      std::uint64_t total = 0;
      for (const std::uint64_t c : spec.counts) total += c;
      return total * width;
    }
    default: return spec.count * width;
  }
}

}  // namespace

void GroupSchedules::reseat() {
  members_ = plan_.present;
  rank_ = static_cast<std::int32_t>(std::ranges::find(members_, plan_.self) - members_.begin());
  WARREN_CHECK(rank_ < size(), "who has a plan is there");
}

void GroupSchedules::place(const RoundsPlan::RingOrder* ring) {
  kept_.clear();
  hosts_.clear();
  domains_.clear();
  host_ = {};
  order_.clear();
  read_here_ = true;
  if (ring != nullptr) {
    std::vector<std::size_t> position(ring->ranks.size());
    for (std::size_t i = 0; i < position.size(); ++i) position[static_cast<std::size_t>(ring->ranks[i].value)] = i;
    for (std::uint32_t i = 0; i < members_.size(); ++i) order_.push_back(i);
    std::ranges::sort(order_, {},
                      [&](std::uint32_t i) { return position[static_cast<std::size_t>(members_[i].value)]; });
    if (std::ranges::is_sorted(order_)) order_.clear();
  }
  if (plan_.hosts.empty()) return;
  for (const Rank r : members_) {
    hosts_.push_back(plan_.hosts[static_cast<std::size_t>(r.value)]);
    domains_.push_back(plan_.domains[static_cast<std::size_t>(r.value)]);
  }
  // A rank that has a host alone shares nothing.
  bool any = false;
  for (std::size_t host = 0; host < plan_.shared.size(); ++host) {
    if (std::ranges::count(hosts_, static_cast<std::uint32_t>(host)) < 2) continue;
    const schedule::Host& shared = plan_.shared[host];
    host_.maps = host_.maps && shared.maps;
    host_.cores = any ? std::min(host_.cores, shared.cores) : shared.cores;  // 0: not known
    host_.gpus = (!any || host_.gpus) && shared.gpus;
    any = true;
  }
  const std::uint32_t own = hosts_[static_cast<std::size_t>(rank_)];
  read_here_ = std::ranges::count(hosts_, own) > 1 && (own >= plan_.shared.size() || plan_.shared[own].maps);
}

schedule::Algorithm GroupSchedules::algorithm_for(const CallSpec& spec, std::int32_t size) {
  if (spec.algorithm != 0) return static_cast<schedule::Algorithm>(spec.algorithm);
  const auto serving = schedule::algorithms_for(spec.collective);
  if (std::find(serving.begin(), serving.end(), plan_.algorithm) != serving.end()) return plan_.algorithm;
  const std::uint64_t bytes = larger_buffer(spec, static_cast<std::uint64_t>(size));
  return kept_.choose({spec.collective, size, bytes, plan_.chunk_bytes, plan_.replicas}, costs_);
}

schedule::Request GroupSchedules::request_for(const Call& call) const {
  schedule::Request request;
  request.collective = call.spec.collective;
  request.algorithm = static_cast<schedule::Algorithm>(call.fingerprint.algorithm);
  request.rank = rank_;
  request.size = size();
  request.root = std::max(call.spec.root, 0);
  request.count = call.spec.count;
  request.counts = call.spec.collective == Collective::kAllToAllv ? call.all_counts : call.counts;
  const std::uint64_t chunk_bytes = schedule::chunk_bytes_of(request.algorithm, request.size, plan_.chunk_bytes);
  request.partial_bytes = call.reducer.bytes(Form::kPartial);
  request.chunk_elements = std::max<std::uint64_t>(1, chunk_bytes / request.partial_bytes);
  request.replicas = plan_.replicas;
  request.settles = plan_.shrinks;
  request.hosts = hosts_;
  request.domains = domains_;
  request.host = host_;
  // A set-up round is of no version: who goes on with it may be in another one.
  if (request.collective == Collective::kAllreduce && request.algorithm == schedule::Algorithm::kRing &&
      !is_setup(call.round)) {
    request.order = order_;
  }
  request.element_bytes = std::max<std::uint64_t>(1, element_bytes(call.spec));
  if (schedule::has_owner(request)) request.owner = owner_of(call.round, request.size);
  return request;
}

Result<GroupSchedules::Prepared> GroupSchedules::schedule_for(const Call& call, bool exchanges) {
  schedule::Request request = request_for(call);
  request.exchanges = exchanges;
  return kept_.schedule_for(request);
}

Result<GroupSchedules::Prepared> GroupSchedules::rest_of(const Call& call, const Ranges& final) const {
  schedule::Request request = request_for(call);
  request.resumed = true;
  for (const Interval& i : final.intervals()) {
    request.final.add(i.begin / request.element_bytes, i.end / request.element_bytes);
  }
  auto made = schedule::make(request);
  if (!made.ok()) return made.status();
  return std::make_shared<const PreparedSchedule>(std::move(made).value());
}

Result<Ranges> GroupSchedules::whole_pieces(const Call& call, const Ranges& final) const {
  if (final.empty()) return Ranges();
  const schedule::Request request = request_for(call);
  const std::uint64_t width = request.element_bytes;
  const std::uint64_t total = result_of(call.spec).total * width;
  if (final.intervals().back().end > total) {
    return Status(Code::kDesync, "the log has " + std::to_string(final.intervals().back().end) + " bytes of " +
                                     to_string(call.round) + ", which has " + std::to_string(total) + " as " +
                                     to_string(call.fingerprint) + ": it is not what other ranks called");
  }
  Ranges elements;
  for (const Interval& i : final.intervals()) elements.add((i.begin + width - 1) / width, i.end / width);
  const Ranges whole = schedule::whole_pieces(request, elements);
  Ranges bytes;
  for (const Interval& i : whole.intervals()) bytes.add(i.begin * width, i.end * width);
  return bytes;
}

void GroupSchedules::repeat(const Call& call, std::int32_t size, Publisher* publisher) {
  const CallSpec& s = call.spec;
  if (!ScheduleCache::may_repeat(s)) return;
  ScheduleCache::Repeated r;
  r.algorithm = static_cast<schedule::Algorithm>(call.fingerprint.algorithm);
  r.reducer = call.reducer;
  r.schedule = call.schedule;
  r.width = element_bytes(s);
  r.total_bytes = result_of(s).total * r.width;
  r.light = LightRound::serves(*r.schedule, r.reducer);
  const schedule::Request request = request_for(call);
  r.owner = schedule::has_owner(request) ? request.owner : -1;
  r.round.schedule = r.schedule.get();
  r.round.generation = plan_.generation;
  r.round.fingerprint = call.fingerprint;
  r.round.reducer = call.reducer;
  r.round.publisher = publisher;
  kept_.repeat(s, size, std::move(r));
}

}  // namespace warren::worker
