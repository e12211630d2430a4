#include "nn/expert_spread.h"

namespace tutti::nn {
namespace {

ExpertSpread one_device;
thread_local ExpertSpread* current = &one_device;

}  // namespace

ExpertSpread& expert_spread() { return *current; }

ExpertSpreadScope::ExpertSpreadScope(ExpertSpread* spread) : outer_(current) {
  current = spread ? spread : &one_device;
}
ExpertSpreadScope::~ExpertSpreadScope() { current = outer_; }

}  // namespace tutti::nn
