// Support for fork(). The child has only the thread that called fork(). A mutex that another thread held would stay
// locked forever.
#ifndef RAGGEMM_KERNELS_THREADS_FORK_H_
#define RAGGEMM_KERNELS_THREADS_FORK_H_

#include <mutex>

namespace raggemm {

// The mutex of the process-wide lists of pack buffers and teams that calls gave back. It is held only briefly. fork()
// locks the mutex first and unlocks it afterwards, so the child finds the mutex free and the lists intact.
extern constinit std::mutex lists_mutex;

// Returns true if fork() made this process after the library was loaded.
bool IsForkedChild();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_THREADS_FORK_H_
