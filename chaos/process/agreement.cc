#include "chaos/process/agreement.h"

#include <bit>
#include <cinttypes>
#include <cstdio>

namespace warren::chaos::process {
namespace {

std::string place(std::uint64_t iteration, std::uint64_t call) {
  return "iteration " + std::to_string(iteration) + ", call " + std::to_string(call);
}

}  // namespace

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

std::string describe(Contributors contributors) {
  std::string out;
  for (std::uint32_t r = 0; r < 64; r++) {
    if ((contributors >> r & 1) != 0) out += (out.empty() ? "" : ", ") + std::to_string(r);
  }
  return "{" + out + "}";
}

std::optional<std::string> Agreement::contributors_are_wrong(Contributors contributors) const {
  const auto n = static_cast<std::uint32_t>(std::popcount(contributors));
  if (contributors >> program_.shape().ranks == 0 && n >= program_.shape().min_workers) return std::nullopt;
  return "contributors " + describe(contributors) + " of " + std::to_string(program_.shape().ranks) + " ranks, " +
         std::to_string(program_.shape().min_workers) + " at least";
}

std::optional<std::string> Agreement::differs(const Said& first, const Said& said) {
  if (said.contributors != first.contributors) {
    return "contributors " + describe(said.contributors) + ", elsewhere " + describe(first.contributors);
  }
  if (said.digest != first.digest) {
    return "digest " + hex(said.digest) + ", elsewhere " + hex(first.digest) + ", of contributors " +
           describe(said.contributors);
  }
  return std::nullopt;
}

std::optional<std::string> Agreement::preamble(std::uint64_t digest, Contributors contributors) {
  if (auto wrong = contributors_are_wrong(contributors)) return "preamble: " + *wrong;
  const Said said{digest, contributors};
  if (preamble_.contributors == 0) {
    preamble_ = said;
    const std::uint64_t want = oracle_.preamble(contributors);
    if (digest == want) return std::nullopt;
    return "preamble: digest " + hex(digest) + ", not " + hex(want) + ", of contributors " + describe(contributors);
  }
  const auto why = differs(preamble_, said);
  return why ? std::optional("preamble: " + *why) : std::nullopt;
}

std::size_t Agreement::calls(std::uint64_t iteration) {
  const auto at = iterations_.find(iteration);
  if (at != iterations_.end()) return at->second.size();
  return iterations_.emplace(iteration, program_.iteration(iteration).size()).first->second.size();
}

std::optional<std::string> Agreement::result(std::uint64_t iteration, std::uint32_t call, std::uint64_t digest,
                                             Contributors contributors) {
  if (call >= calls(iteration)) return "there is no such call";
  if (auto wrong = contributors_are_wrong(contributors)) return wrong;
  const Said said{digest, contributors};
  Said& first = iterations_[iteration][call];
  if (first.contributors != 0) return differs(first, said);
  first = said;
  return compute();
}

std::optional<std::string> Agreement::loaded(std::uint64_t version, std::uint64_t digest) {
  const std::string what = "state of version " + std::to_string(version) + " has digest " + hex(digest);
  if (const auto right = states_.find(version); right != states_.end()) {
    return right->second == digest ? std::nullopt : std::optional(what + ", not " + hex(right->second));
  }
  const auto first = loaded_.emplace(version, digest).first;
  return first->second == digest ? std::nullopt : std::optional(what + ", elsewhere " + hex(first->second));
}

// All that is known without a gap.
std::optional<std::string> Agreement::compute() {
  std::optional<std::string> wrong;
  const auto complain = [&](const std::string& why) {
    if (!wrong) wrong = why;
  };
  while (true) {
    const std::uint64_t iteration = oracle_.iteration();
    const std::uint32_t call = oracle_.call();
    const auto at = iterations_.find(iteration);
    if (at == iterations_.end() || at->second[call].contributors == 0) return wrong;
    const Said said = at->second[call];
    const bool decision = program_.shape().iterations == 0 && call == 0;
    const std::uint64_t want = oracle_.next(said.contributors);
    if (decision ? said.digest > 1 : said.digest != want) {
      complain("what all have said of " + place(iteration, call) + " is digest " + hex(said.digest) + ", not " +
               hex(want) + ", of contributors " + describe(said.contributors));
    }
    if (oracle_.call() != 0 || !program_.checkpoint_after(iteration)) continue;
    const std::uint64_t version = (iteration + 1) / program_.shape().checkpoint_every;
    const std::uint64_t state = digest_of(program_.global_state(version, oracle_.state()));
    states_.emplace(version, state);
    if (const auto early = loaded_.find(version); early != loaded_.end()) {
      if (early->second != state) {
        complain("state of version " + std::to_string(version) + " has digest " + hex(early->second) + ", not " +
                 hex(state));
      }
      loaded_.erase(early);
    }
  }
}

std::optional<std::string> Agreement::missing() const {
  for (auto at = iterations_.lower_bound(oracle_.iteration()); at != iterations_.end(); ++at) {
    for (const Said& said : at->second) {
      if (said.contributors != 0) {
        return "nobody has said what " + place(oracle_.iteration(), oracle_.call()) +
               " gave, and there are results of " +
               place(at->first, static_cast<std::uint64_t>(&said - at->second.data()));
      }
    }
  }
  if (!loaded_.empty()) return "version " + std::to_string(loaded_.begin()->first) + " was loaded and never taken";
  return std::nullopt;
}

}  // namespace warren::chaos::process
