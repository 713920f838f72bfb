// Judges the results of a job in mode shrink. Of each call all ranks, in all lives, have to record one set of
// contributors and one digest: the first that is read wins. And that digest has to be what plain loops give over the
// inputs of these contributors alone, which is looked at in the order of the program, whatever order records are read
// in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chaos/process/oracle.h"

namespace warren::chaos::process {

class Agreement {
 public:
  // The program, which is in mode shrink, must outlive this.
  explicit Agreement(const Program& program) : program_(program), oracle_(program) {}

  // What somebody has recorded. Returns what is wrong with it, or with a call that can be computed now.
  [[nodiscard]] std::optional<std::string> preamble(std::uint64_t digest, Contributors contributors);
  [[nodiscard]] std::optional<std::string> result(std::uint64_t iteration, std::uint32_t call, std::uint64_t digest,
                                                  Contributors contributors);
  // The digest of the state of a version (>= 1).
  [[nodiscard]] std::optional<std::string> loaded(std::uint64_t version, std::uint64_t digest);
  // After the last record: a call that nobody has recorded, though there is something after it.
  [[nodiscard]] std::optional<std::string> missing() const;

  // How many calls iterations have: for who goes from one result to the next.
  [[nodiscard]] std::size_t calls(std::uint64_t iteration);

 private:
  struct Said {
    std::uint64_t digest = 0;
    Contributors contributors = 0;  // 0: nobody has said anything
  };

  [[nodiscard]] std::optional<std::string> contributors_are_wrong(Contributors contributors) const;
  static std::optional<std::string> differs(const Said& first, const Said& said);
  std::optional<std::string> compute();

  const Program& program_;
  ShrinkOracle oracle_;
  Said preamble_;
  std::map<std::uint64_t, std::vector<Said>> iterations_;
  std::map<std::uint64_t, std::uint64_t> loaded_;  // by version, until the oracle is there
  std::map<std::uint64_t, std::uint64_t> states_;  // by version: digests that are right
};

// "{0, 2, 3}"
[[nodiscard]] std::string describe(Contributors contributors);
[[nodiscard]] std::string hex(std::uint64_t value);

}  // namespace warren::chaos::process
