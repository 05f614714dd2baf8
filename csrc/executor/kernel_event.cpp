#include "executor/kernel_event.h"

#include <ATen/record_function.h>

namespace kiln {

bool is_profiled() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

struct KernelEvent::Record {
  explicit Record(const std::string& origin) : name("kiln: " + origin) {
    if (function.isActive()) function.before(std::string_view(name));
  }

  std::string name;  // the event keeps a view of it
  at::RecordFunction function{at::RecordScope::FUNCTION};
};

KernelEvent::KernelEvent(const std::string& origin) : record_(std::make_unique<Record>(origin)) {}

KernelEvent::~KernelEvent() = default;

}  // namespace kiln
