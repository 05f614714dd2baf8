// Events of kernels in torch.profiler. Calls of ATen have their own.
#pragma once

#include <memory>
#include <string>

namespace kiln {

// Does a profiler listen to what this thread does?
bool is_profiled();

// An event from its construction to its end, called "kiln: " and `origin`.
class KernelEvent {
 public:
  explicit KernelEvent(const std::string& origin);
  ~KernelEvent();
  KernelEvent(const KernelEvent&) = delete;
  KernelEvent& operator=(const KernelEvent&) = delete;

 private:
  struct Record;
  std::unique_ptr<Record> record_;
};

}  // namespace kiln
