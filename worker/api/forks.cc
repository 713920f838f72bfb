#include "worker/api/forks.h"

#include <pthread.h>

#include "storage/fork_guard.h"
#include "worker/api/call_sites.h"

namespace warren::api {

void count_forks() {
  close_in_children();
  // A child calls, too: another thread of its parent must not have the names then.
  static const int once = pthread_atfork([] { site_names().mutex().lock(); }, [] { site_names().mutex().unlock(); },
                                         [] {
                                           site_names().mutex().unlock();
                                           fork_number.fetch_add(1);
                                         });
  (void)once;
}

}  // namespace warren::api
