// The sources of a lost job: what hosts have kept of it, and which of that was looked at in vain. Also the lives that
// hope for a source that another life brings (docs/decisions/0022-a-job-that-is-lost.md).
//
// The machine decides when a job is lost, and when it is taken up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class LostJob {
 public:
  // Where something of a run has been kept.
  enum class From { kDisk, kMirror, kLauncher };
  // By host. A mirror is one for all hosts, and has the host "".
  using Source = std::pair<std::string, From>;
  using Sources = std::set<Source>;
  enum class Hope : std::uint8_t {
    kNone,    // nothing has come within the time, or as many hope as may
    kBegins,  // another life has as long to come as this one waits
    kStays,
  };

  // The sources of `run` on this host, as its life says. `held`: null if its disk holds nothing.
  [[nodiscard]] static Sources brought_by(const std::string& host_id, const wire::Held* held,
                                          const wire::Logged& logged, std::uint64_t run);

  // A plan is about to be made, whose new lives have brought this and whose ranks are on these hosts.
  void ask(Sources brought, const std::set<std::string>& hosts);
  // The plan's new lives have brought too little: their sources take the job up no more before `until`. A source that
  // has taken the job up and was not asked may do so once more: its life had died, or had no rank. At most
  // `most_remembered` of these are known.
  void note_in_vain(TimeMs now, TimeMs until, std::size_t most_remembered);
  // Whether one of these was not looked at in vain, or long ago.
  [[nodiscard]] bool may_take_up(const Sources& brought, TimeMs now) const;
  // When the last of these is looked at again. TimeMs{}: none was looked at in vain.
  [[nodiscard]] TimeMs looks_again_at(const Sources& brought) const;
  // The job is taken up by what a life brings. Nobody hopes any more.
  void take_up(Sources brought);

  // A life has come that brings nothing new. It may hope for `patience_ms`, and with it at most `most` lives.
  Hope hope(Incarnation life, TimeMs now, std::int64_t patience_ms, std::size_t most);
  // By life: until when it hopes.
  [[nodiscard]] const std::map<Incarnation, TimeMs>& hopes() const { return hopes_; }

 private:
  Sources asked_;                       // what new lives of the newest plan have brought
  Sources taken_up_by_;                 // and no host of it has a rank in a plan since
  Sources missed_;                      // took the job up, and was not asked
  std::map<Source, TimeMs> looked_at_;  // in vain: until when it takes the job up no more
  std::map<Incarnation, TimeMs> hopes_;
};

}  // namespace warren
