// The contenders of a case: our library and other libraries (peers).
#pragma once

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
  std::string threading;  // Peers have "own" or "outer" (PeerThreads), and WithBf16 has "ours".
  // Makes one call on operand set number `set`, which is below `sets`. Successive calls must use successive sets, so
  // that no weights (wgrad: gradients) are in a cache.
  std::function<absl::Status(int64_t set)> run;
  int64_t sets = 1;
  // Result of a call on operand set 0. Null if it cannot be compared with ours.
  char* result = nullptr;
};

// Returns our library, then the peers that support the types and mode of the case. Each peer appears with
// PeerThreads::kOwn. If the case has several threads, peers without one_call appear a second time, with kOuter.
std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers);

// Returns the peers that support `wide_case`. The operands in `wide` are already widened to f32, so calls widen
// nothing.
std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers);

// Returns our library as a contender that multiplies the bf16 operands in `wide` instead of the quantized ones of `c`.
Contender WithBf16(const Case& c, const Memory& wide);

// Returns a contender whose calls widen the bf16 operands of `c` and then run `widened`, a contender of MakeWidened.
Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide);

}  // namespace raggemm::bench
