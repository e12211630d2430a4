// What Python needs of the collectives: the c10d backend of one process group.
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <utility>

#include "collective/comm_backend.h"
#include "collective/store_meeting.h"

namespace py = pybind11;

namespace tutti::collective {
namespace {

class PythonBackend : public CommBackend {
 public:
  using CommBackend::CommBackend;
  // The group's threads end here, and may need the interpreter for a callback before they do.
  ~PythonBackend() override {
    std::optional<py::gil_scoped_release> release;
    if (Py_IsInitialized() && PyGILState_Check()) release.emplace();
    CommBackend::shutdown();
  }
};

c10::intrusive_ptr<c10d::Backend> join(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, double timeout, const std::string& group) {
  auto communicator =
      join_by_store(*store, {.rank = rank, .size = size, .timeout = timeout, .group = group});
  return c10::make_intrusive<PythonBackend>(std::make_shared<CommThreads>(std::move(communicator)));
}

}  // namespace
}  // namespace tutti::collective

PYBIND11_MODULE(_C, module) {
  module.def("join", &tutti::collective::join, py::call_guard<py::gil_scoped_release>(),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("group"));
}
