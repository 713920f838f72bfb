// A worker with a log on disk, for tests about how processes end.
//   leaver TRACKER SECRET_FILE WORKER_ID WORLD_SIZE DATA_DIR HOW
// It makes rounds and checkpoints, then ends as HOW says; 0: all went well. Functions that are given to atexit() are
// given before the communicator is made, as frameworks do.
//   atexit      finalizes and destroys in such a function
//   checkpoint  likewise; a checkpoint before that is refused, a round is not
//   static      finalizes in the destructor of a static object
//   exit        exit(5) with a communicator that is never destroyed
//   global      exit(5) with a global communicator, which its destructor destroys
//   child       a child of the process destroys its parent's communicator and calls exit()
//   child_job   a child of the process makes a communicator of its own meanwhile, for the job "child"
//   after       likewise, when the parent has finalized and destroyed its own
//   full        it logs warnings
//   plain       finalizes, destroys and returns
//   spawns      a child of the process runs the same program as the same worker meanwhile, and fails
//   drains      drains, with a log queue from which nobody takes
//   replaces    destroys without finalize, and becomes the same worker's next life by exec, as `plain`
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "warren/warren.h"

namespace {

using warren::Communicator;

constexpr int kAlarmS = 60;  // whoever hangs is killed

std::vector<std::string> arguments;
std::string how;
std::unique_ptr<Communicator> comm;

// _exit(): what is tested here may be what exit() does.
[[noreturn]] void fail(const std::string& text) {
  std::printf("%s: %s\n", how.c_str(), text.c_str());
  (void)std::fflush(stdout);
  _exit(9);
}

std::unique_ptr<Communicator> make(const std::string& job, int world_size) {
  warren::Options options;
  options.tracker = arguments[0];
  options.secret_file = arguments[1];
  options.job = job;
  options.worker_id = arguments[2];
  options.world_size = world_size;
  options.data_dir = arguments[4] + "/" + job;
  options.log_level = how == "full" ? warren::LogLevel::warning : warren::LogLevel::error;
  options.log = "sync";
  static warren::LogQueue queue(1000);
  if (how == "drains") {
    options.log_level = warren::LogLevel::info;
    options.log_queue = &queue;
  }
  return std::make_unique<Communicator>(Communicator::create(options));
}

void work(Communicator& with) {
  std::vector<float> v(300'000, 1.0f);
  (void)with.load_checkpoint();
  for (int round = 0; round < 6; ++round) {
    with.allreduce(std::span(v), warren::Op::max);
    if (round % 2 == 1) with.checkpoint(v);
  }
}

void finish() {
  try {
    if (how == "checkpoint") {
      try {
        comm->checkpoint(std::vector<float>(1));
        fail("a checkpoint was taken that cannot be written");
      } catch (const warren::Error& e) {
        if (e.code() != warren::ErrorCode::unavailable) fail(e.what());
      }
      comm->barrier();
    }
    comm->finalize();
  } catch (const warren::Error& e) {
    fail(e.what());
  }
  comm.reset();
}

// Runs `body` in a child that ends with this exit code.
template <class Body>
void in_a_child(Body body, int code = 7) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kAlarmS);
    body();
    std::exit(7);
  }
  int status = 0;
  (void)waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != code) fail("its child ended with status " + std::to_string(status));
}

void job_of_child() {
  const auto own = make("child", 1);
  work(*own);
  own->finalize();
}

// Becomes the same worker, as `plain`: by exec, which leaves the process what it is.
[[noreturn]] void become_plain() {
  std::vector<std::string> again{std::filesystem::read_symlink("/proc/self/exe").string()};
  again.insert(again.end(), arguments.begin(), arguments.end());
  again.back() = "plain";
  std::vector<char*> argv;
  for (std::string& argument : again) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail("exec");
}

// Destroyed before `comm`.
struct Last {
  ~Last() {
    if (how == "static") finish();
  }
};
const Last last;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  arguments.assign(argv + 1, argv + argc);
  how = arguments[5];
  alarm(kAlarmS);
  if (how == "atexit" || how == "checkpoint") std::atexit(finish);
  try {
    comm = make("parent", std::atoi(arguments[3].c_str()));
    work(*comm);
    if (how == "child") in_a_child([] { comm.reset(); });
    if (how == "child_job") in_a_child(job_of_child);
    if (how == "spawns") in_a_child(become_plain, 9);
    if (how == "drains") {
      comm->drain(std::chrono::seconds(0));
      pause();
    }
    if (how == "replaces") {
      comm.reset();
      become_plain();
    }
    if (how == "exit") (void)comm.release();
    if (how == "exit" || how == "global") std::exit(5);
    if (how.starts_with("child") || how == "after" || how == "plain" || how == "spawns") finish();
    if (how == "after") in_a_child(job_of_child);
  } catch (const warren::Error& e) {
    fail(e.what());
  }
  return 0;
}
