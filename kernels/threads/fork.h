// What fork() needs of us. The child has the thread that forked and no other: a mutex that another one held stays
// locked for ever, and threads that the parent had made are missing.
#ifndef RAGGEMM_KERNELS_THREADS_FORK_H_
#define RAGGEMM_KERNELS_THREADS_FORK_H_

#include <mutex>

namespace raggemm {

// Guards the process-wide lists of what calls gave back, for moments only. fork() takes it first, so that the child
// finds it free and the lists whole.
extern constinit std::mutex lists_mutex;

// Whether fork() made this process after the library was loaded.
bool IsForkedChild();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_THREADS_FORK_H_
