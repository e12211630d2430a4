#include "nn/grad_sink.h"

namespace tutti::nn {
namespace {
thread_local GradSink* current = nullptr;
}

GradSink* grad_sink() { return current; }

GradSinkScope::GradSinkScope(GradSink* sink) : outer_(current) { current = sink; }
GradSinkScope::~GradSinkScope() { current = outer_; }

}  // namespace tutti::nn
