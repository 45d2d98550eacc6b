// The contenders of a case: our library and other libraries (peers).
#ifndef RAGGEMM_BENCH_CONTENDERS_H_
#define RAGGEMM_BENCH_CONTENDERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

struct Contender {
  std::string name;
  std::string threading;  // "own" or "outer" for a peer (PeerThreads), empty for our library.
  // Makes one call on operand set number `set`, which is below `sets`. If successive calls use successive sets, no call
  // finds its weights in a cache.
  std::function<absl::Status(int64_t set)> run;
  int64_t sets = 1;
  // The result matrix of operand set 0. Null if it cannot be compared with that of our library.
  char* result = nullptr;
};

// Returns our library, then the peers that support the types of the case. A peer appears once for each value of
// PeerThreads that it supports.
std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers);

// Returns peers that multiply the f32 operands of `wide_case` in `wide`. These operands are already widened, so calls
// widen nothing.
std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers);

// Returns our library on bf16 operands with the shapes, but not the values of the quantized case `c`.
Contender WithBf16(const Case& c, const Memory& wide);

// Returns `widened`, a contender of MakeWidened, with one more step: it widens the bf16 operands in each call.
Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTENDERS_H_
