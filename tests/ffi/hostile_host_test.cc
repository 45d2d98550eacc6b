// XLA's side of the C interface, told to misbehave one way at a time. Each case ends with a defined error and out
// untouched, or with the right answer: against the bits of the rule and against the float64 reference.
//
//   frames.cc       the frame, its API, its lists, each of its buffers
//   attributes.cc   each attribute in every wrong form
//   buffers.cc      types, shapes, places, memory that operands share
//   workspaces.cc   the workspace
//   sizes.cc        what a router may write; extents without elements
//   pools.cc        the pool, and many calls at once
//   guard_pages.cc  nothing beyond a buffer is read or written
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/exported_handlers.h"

namespace raggemm::test {
namespace {

// Handlers are found by their symbols, so that a new one is attacked as soon as there is one. What it binds must be
// known, though: this fails where there is a target of which the calls here are not.
TEST(ExportedHandlersTest, AreThoseOfTheKnownTargets) {
  std::set<std::string> targets;
  std::set<XLA_FFI_ExecutionStage> stages;
  for (const ExportedHandler& handler : ExportedHandlers()) {
    targets.insert(handler.target);
    stages.insert(handler.stage);
  }
  EXPECT_EQ(targets, std::set<std::string>{"raggemm_grouped_gemm_v1"});
  EXPECT_EQ(stages,
            (std::set<XLA_FFI_ExecutionStage>{XLA_FFI_ExecutionStage_INSTANTIATE, XLA_FFI_ExecutionStage_EXECUTE}));
}

}  // namespace
}  // namespace raggemm::test
