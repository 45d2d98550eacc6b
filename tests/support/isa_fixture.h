// Tests that run once per instruction set.
#ifndef RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_
#define RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::test {

inline std::string IsaName(Isa isa) { return std::string(NameOf(isa)); }
// Returns the ISA of this name. Aborts if this architecture has none.
Isa Named(absl::string_view isa);
// Returns a CPU with this ISA and those after it in AllIsas. It is not probed, so choices for it do not depend on the
// host's load.
Cpu CpuUpTo(Isa isa);
// Returns true if the CPU has the ISA of this name. Asks the CPU without the library (host_x86.cc, host_generic.cc).
bool CpuHas(absl::string_view isa);
// Returns true if the CPU has AMX without 8-bit tiles.
bool CpuLacksTilesOfBytes();
// Returns true if the CPU has the ISA, or plain C++ replaces it.
bool HostHas(Isa isa);
bool HostLacksTilesOfBytes();
// True in programs with software_units.cc.
extern const bool kUnitsAreSoftware;
std::vector<Isa> HostIsas();

class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  static Options With(Isa isa) { return {.executor = Executor::kSerial, .isa = isa}; }
};

// Instantiates tests of a class derived from IsaTest for the CPU's ISAs.
#define RAGGEMM_FOR_EACH_ISA(fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(Isa, fixture, testing::ValuesIn(HostIsas()), \
                           [](const testing::TestParamInfo<Isa>& info) { return IsaName(info.param); })

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_
