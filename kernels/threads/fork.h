// Support for fork(). A child process has only the thread that called fork(), so a mutex that another thread held would
// stay locked in the child forever.
#pragma once

#include <mutex>

namespace raggemm {

// The mutex of the process-wide lists of free pack buffers and free teams. Handlers of fork() hold it during the fork.
extern constinit std::mutex lists_mutex;

// Returns true if fork() made this process after the library was loaded.
bool IsForkedChild();

}  // namespace raggemm
