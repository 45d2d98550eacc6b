// The float mode of a thread is the value of the control register MXCSR (x86) or FPCR (aarch64).
#pragma once

#include <cstdint>

namespace raggemm::test {

// Returns the float mode of the calling thread, on x86 without the exception flags of MXCSR.
uint64_t ThreadMode();
void SetThreadMode(uint64_t mode);

#ifdef __x86_64__
inline constexpr uint64_t kUsualMode = 0x1f80;
inline constexpr uint64_t kFlushes = 0x8040;
inline constexpr uint64_t kRoundsToZero = 0x6000;
#else
inline constexpr uint64_t kUsualMode = 0;
inline constexpr uint64_t kFlushes = 1 << 24;
inline constexpr uint64_t kRoundsToZero = 3 << 22;
#endif
inline constexpr uint64_t kHostileMode = kUsualMode | kFlushes | kRoundsToZero;

}  // namespace raggemm::test
