#include "chaos/process/judge_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace warren::chaos::process {

Result<std::unique_ptr<JudgeThread>> JudgeThread::start(const Program& program, const std::string& folder,
                                                        bool forgiving) {
  std::unique_ptr<JudgeThread> judge(new JudgeThread(program));
  for (std::uint32_t w = 0; w < program.shape().ranks; w++) {
    auto reader = RecordReader::open(records_path(folder, w));
    if (!reader.ok()) return reader.status();
    judge->readers_.push_back(std::move(reader).value());
  }
  if (forgiving) judge->judge_.forgive_rollback();
  judge->thread_ = std::thread([j = judge.get()] { j->run(); });
  return judge;
}

void JudgeThread::run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  while (true) {
    const bool last = last_.load();
    bool idle = true;
    for (std::uint32_t w = 0; w < workers_; w++) {
      for (const Record& r : readers_[w].take()) {
        idle = false;
        const auto wrong = judge_.take(w, r);
        if (wrong) say(*wrong);
      }
    }
    if (idle && last) return;
    if (idle) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void JudgeThread::say(const std::string& wrong) {
  if (divergences_.fetch_add(1) >= kMostPrinted) return;
  std::fprintf(stderr, "DIVERGENCE: %s\n", wrong.c_str());
  first_.push_back(wrong);
}

}  // namespace warren::chaos::process
