#include "executor/run.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "executor/aten.h"
#include "executor/check.h"
#include "executor/device.h"
#include "executor/kernel_event.h"
#include "executor/memory_pool.h"
#include "executor/tensors.h"

namespace kiln {

namespace {

constexpr c10::DispatchKeySet kBelowAutograd =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
constexpr size_t kScratchKept = size_t{1} << 20;
constexpr int64_t kAlignment = 64;

// 64-byte aligned memory of this thread, kept between launches unless it is large.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (bytes == 0) return;
    if (bytes <= kScratchKept) {
      thread_local std::vector<char> kept;
      if (kept.size() < bytes + kAlignment) kept.resize(bytes + kAlignment);
      at_ = kept.data();
    } else {
      own_.reset(new char[bytes + kAlignment]);
      at_ = own_.get();
    }
    auto address = reinterpret_cast<uintptr_t>(at_);
    at_ += (kAlignment - address % kAlignment) % kAlignment;
  }
  void* data() const { return at_; }

 private:
  char* at_ = nullptr;
  std::unique_ptr<char[]> own_;
};

struct LaunchArguments {
  KernelFunction function;
  void* const* tensors;
  const int64_t* ints;
  const double* floats;
  size_t scratch;
  int64_t* status;
};

void run_range(const void* context, int64_t begin, int64_t end) {
  const auto& launch = *static_cast<const LaunchArguments*>(context);
  Scratch scratch(launch.scratch);
  launch.function(launch.tensors, launch.ints, launch.floats, begin, end, scratch.data(),
                  launch.status);
}

// A launch over a table: `ends[r]` counts the units of the rows up to r.
struct TableArguments {
  LaunchArguments first;
  const int64_t* ends;
  int32_t rows;
  size_t tensors, ints;  // of a row
};

void run_rows(const void* context, int64_t begin, int64_t end) {
  const auto& table = *static_cast<const TableArguments*>(context);
  const int64_t* last = table.ends + table.rows;
  auto row = static_cast<size_t>(std::upper_bound(table.ends, last, begin) - table.ends);
  for (; begin < end; row++) {
    int64_t start = row == 0 ? 0 : table.ends[row - 1], stop = std::min(end, table.ends[row]);
    LaunchArguments launch = table.first;
    launch.tensors += row * table.tensors;
    launch.ints += row * table.ints;
    if (begin < stop) run_range(&launch, begin - start, stop - start);
    begin = stop;
  }
}

// One call of one plan.
class Run {
 public:
  Run(const Program& program, const std::vector<TensorPtr>& constants, Frame& frame, bool donate)
      : program_(program),
        constants_(constants),
        frame_(frame),
        slots_(frame.slots.data()),
        ints_(frame.ints.data()),
        floats_(frame.floats.data()),
        donate_(donate),
        profiled_(is_profiled()) {
    scope_.emplace(profiled_);
  }
  ~Run() {
    // Inputs stay: results may be views of them.
    for (size_t n = program_.inputs.size(); n < frame_.slots.size(); n++) slots_[n].clear();
  }

  void take(Value* inputs) {
    for (size_t n = 0; n < program_.inputs.size(); n++) slots_[n] = inputs[n].hand_over();
  }
  // Until `steps` nothing takes long.
  void enter();
  void finish(Value* outputs) {
    begin();
    while (advance()) continue;
    end();
    results(outputs);
  }
  // The three parts of `finish`. `advance` goes to the next hand-over, which it returns, or to the
  // end; between calls, `pause` gives up what belongs to the thread, and `resume` takes it again.
  void begin();
  const HandOverStep* advance();
  void end();
  // Without a step that hands over, all of them; `last_results` leaves out those of such steps.
  void results(Value* outputs);
  void last_results(Value* outputs);
  void hand_over(const HandOverStep& step, Value* outputs);
  void pause() {
    device_.reset();
    scope_.reset();
  }
  void resume() {
    profiled_ = is_profiled();
    if (!scope_) scope_.emplace(profiled_);
  }

 private:
  const Layout& layout(int32_t number) const {
    return program_.layouts[static_cast<size_t>(number)];
  }
  const std::string& text(int32_t number) const {
    return program_.strings[static_cast<size_t>(number)];
  }
  c10::TensorImpl& tensor(Slot slot) const {
    const Value& value = slots_[slot];
    KILN_CHECK(value.is_tensor(), "slot ", slot, " of the plan holds no tensor");
    return *value.tensor();
  }

  // The device with that index, or with -1 the one that is current in this thread.
  DeviceScope& device(int8_t index) {
    if (!device_) device_ = program_.runtime->scope();
    device_->enter(index);
    return *device_;
  }
  void check_status();
  void align_inputs();
  void restore_inputs();

  void read_scalar(const Input& input, const Value& value, size_t number);
  void bind(const Binding& binding);
  void check_input(const Input& input, Value& value, size_t number) const;
  // One overload per kind of step.
  void run(const AllocateStep& step);
  void run(const RawAllocateStep& step);
  void run(const ViewStep& step);
  void run(const CopyStep& step) { copy_into(tensor(step.target), tensor(step.source)); }
  void run(const ConstantStep& step) { slots_[step.out].borrow(constants_[step.index].get()); }
  void run(const FreeStep& step);
  void run(const HandOverStep& step) {}  // see `advance`
  void run(const WaitStep& step) { wait_for(tensor(step.source)); }
  void run(const LaunchStep& step);
  void run(const AtenStep& step) { step.resolved->run({&program_, slots_, ints_, floats_}); }
  void run(const RandomSeedStep& step);
  void run(const HostReadStep& step);
  void run(const CheckRelationStep& step) const;
  void run(const CheckTensorStep& step);
  void run(const BranchStep& step);
  void run(const LoopStep& step);
  // Runs a nested plan on tensors, then on `num_sizes` numbers; leaves the tensors undefined.
  std::vector<TensorPtr> call(const Program& inner, std::vector<TensorPtr> given, Register sizes,
                              int32_t num_sizes);
  std::vector<TensorPtr> shared(const std::vector<Slot>& slots) const;
  bool reuse(const AllocateStep& step, const Layout& planned);
  TensorPtr allocated(const Layout& planned);
  void make_output(const Output& output, Value* outputs, Value& result);
  TensorPtr shifted_view(const c10::TensorImpl& base, const Layout& planned, int64_t shift);
  TensorPtr alias(const Output& output, const Value& base);

  const Program& program_;
  const std::vector<TensorPtr>& constants_;
  Frame& frame_;
  Value* slots_;
  int64_t* ints_;
  double* floats_;
  bool donate_;
  bool profiled_;
  std::optional<PlanScope> scope_;
  const Step* at_ = nullptr;
  c10::DataPtr arena_;
  std::unique_ptr<DeviceScope> device_;
  std::vector<std::pair<Slot, Value>> unaligned_;  // inputs whose slots hold aligned copies
  int64_t status_ = 0;
};

[[noreturn]] void wrong_input(size_t number, const std::string& problem) {
  throw PlanError(ErrorKind::kInput, static_cast<int64_t>(number), problem);
}

void Run::read_scalar(const Input& input, const Value& value, size_t number) {
  switch (input.scalar) {
    case ScalarKind::kInt:
      if (value.tag() != Value::Tag::kInt) wrong_input(number, "expected an int");
      ints_[input.number] = value.integer();
      break;
    case ScalarKind::kBool:
      if (value.tag() != Value::Tag::kBool) wrong_input(number, "expected a bool");
      ints_[input.number] = value.integer();
      break;
    case ScalarKind::kFloat:
      if (value.tag() != Value::Tag::kFloat) wrong_input(number, "expected a float");
      floats_[input.number] = value.real();
      break;
    case ScalarKind::kTensor:
      if (!value.is_tensor()) wrong_input(number, "expected a tensor");
  }
}

void Run::bind(const Binding& binding) {
  const c10::TensorImpl& from = *slots_[binding.slot].tensor();
  auto number = static_cast<size_t>(binding.slot);
  if (from.has_symbolic_sizes_strides() || from.layout() != c10::kStrided) {
    wrong_input(number, "got " + describe(from));
  }
  if (binding.kind != BindingKind::kOffset && from.dim() <= binding.dim) {
    wrong_input(number, "it has too few dimensions");
  }
  switch (binding.kind) {
    case BindingKind::kSize:
      ints_[binding.target] = from.size(binding.dim);
      break;
    case BindingKind::kStride:
      ints_[binding.target] = from.stride(binding.dim);
      break;
    case BindingKind::kOffset:
      ints_[binding.target] = from.storage_offset();
      break;
  }
}

void Run::check_input(const Input& input, Value& value, size_t number) const {
  if (input.layout == kNone) return;
  const Layout& planned = layout(input.layout);
  const c10::TensorImpl& given = *value.tensor();
  uint64_t keys = given.key_set().raw_repr();
  // The key set determines device, layout and opaqueness: the expected one needs no full check.
  bool same_device = planned.device_index < 0 || given.device().index() == planned.device_index;
  if (keys == frame_.known_keys[number] && same_device && has_layout(given, planned, ints_)) return;
  if (fits(given, planned, ints_)) {
    frame_.known_keys[number] = keys;
    return;
  }
  bool same_sizes =
      !given.has_symbolic_sizes_strides() && given.sizes() == sizes_of(planned, ints_);
  if (!input.number || !same_sizes) {
    wrong_input(number, "expected " + describe(planned, ints_) + ", got " + describe(given));
  }
  c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
  TensorPtr adapted = empty_strided(planned, ints_);
  copy_into(*adapted, given);
  value.set_tensor(std::move(adapted));
}

void Run::enter() {
  size_t count = program_.inputs.size();
  for (size_t n = 0; n < count; n++) read_scalar(program_.inputs[n], slots_[n], n);
  for (const Binding& binding : program_.bindings) bind(binding);
  compute(program_.segments[0], ints_, floats_);
  for (size_t n = 0; n < count; n++) check_input(program_.inputs[n], slots_[n], n);
  if (!program_.buffers.empty() && program_.segments.size() == 1) {
    frame_.placement.update(program_, ints_);
    if (frame_.placement.total) {
      arena_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(frame_.placement.total));
    }
  }
}

// Raises what device kernels reported: those of earlier calls, and those of this call that the host
// has waited for.
void Run::check_status() {
  for (int8_t index : program_.status_devices) {
    if (Report report = device(index).take_report(); report.code) {
      PlanError error(ErrorKind::kStatus, report.code, "");
      error.origin = std::move(report.where);
      throw error;
    }
  }
}

// Device kernels assume that every input starts at an aligned address; others are copied.
void Run::align_inputs() {
  for (Slot slot : program_.aligned_inputs) {
    const c10::TensorImpl& given = *slots_[slot].tensor();
    if (is_aligned(given.data())) continue;
    auto index = static_cast<int8_t>(given.device().index());
    TensorPtr copy = copy_of_span(device(index).allocator(), given);
    unaligned_.emplace_back(slot, std::move(slots_[slot]));
    slots_[slot].set_tensor(std::move(copy));
  }
}

void Run::restore_inputs() {
  const std::vector<Slot>& mutated = program_.mutated;
  for (auto& [slot, original] : unaligned_) {
    if (std::find(mutated.begin(), mutated.end(), slot) != mutated.end()) {
      copy_into(*original.tensor(), tensor(slot));
    }
    slots_[slot] = std::move(original);
  }
  unaligned_.clear();
}

void Run::begin() {
  check_status();
  c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
  align_inputs();
  at_ = program_.steps.data();
}

const HandOverStep* Run::advance() {
  c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
  const Step* end = program_.steps.data() + program_.steps.size();
  const Step* at = at_;
  try {
    for (; at != end; at++) {
      if (program_.logged) [[unlikely]]
        program_.runtime->log(*at);
      if (profiled_ && std::holds_alternative<LaunchStep>(at->data)) [[unlikely]] {
        KernelEvent event(text(at->origin));
        run(std::get<LaunchStep>(at->data));
        continue;
      }
      std::visit([this](const auto& data) { run(data); }, at->data);
      if (program_.hands_over) [[unlikely]] {
        const auto* step = std::get_if<HandOverStep>(&at->data);
        if (!step) continue;
        at_ = at + 1;
        return step;
      }
    }
  } catch (PlanError& error) {
    if (error.origin.empty()) error.origin = text(at->origin);
    throw;
  }
  return nullptr;
}

void Run::end() {
  c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
  restore_inputs();
  for (Slot slot : program_.bumped) {
    if (slots_[slot].is_tensor() && !slots_[slot].tensor()->is_inference()) {
      slots_[slot].tensor()->bump_version();
    }
  }
}

void Run::run(const AllocateStep& step) {
  const Layout& planned = layout(step.layout);
  if (step.reuse != kNone && reuse(step, planned)) return;
  slots_[step.out].set_tensor(allocated(planned));
}

// Fresh memory in the layout.
TensorPtr Run::allocated(const Layout& planned) {
  if (planned.device_type == kCpu || !program_.runtime) return empty_strided(planned, ints_);
  return empty_from(device(planned.device_index).allocator(), planned, ints_);
}

// Moves the memory of `step.reuse` to the new slot; false if that memory cannot be reused.
bool Run::reuse(const AllocateStep& step, const Layout& planned) {
  bool is_input = step.reuse < static_cast<Slot>(program_.inputs.size());
  Value old = std::move(slots_[step.reuse]);
  bool enough = old.is_tensor() && (!is_input || donate_) && old.is_only_owner() &&
                static_cast<int64_t>(old.tensor()->storage().nbytes()) >= ints_[planned.bytes] &&
                (!program_.aligned || is_aligned(old.tensor()->storage().data()));
  if (!enough) return false;
  slots_[step.out].set_tensor(over_storage(*old.tensor(), planned, ints_, ints_[planned.offset]));
  return true;
}

void Run::run(const RawAllocateStep& step) {
  if (step.ended != kNone) slots_[step.ended].clear();
  const Layout& planned = layout(step.layout);
  if (program_.segments.size() > 1) {
    // Sizes depend on data, so the arena has no layout on entry: the slot gets a tensor.
    return slots_[step.out].set_tensor(empty_cpu(planned, ints_));
  }
  char* start =
      static_cast<char*>(arena_.get()) + frame_.placement.offsets[static_cast<size_t>(step.buffer)];
  slots_[step.out].set_raw(start + ints_[planned.offset] * planned.itemsize);
}

// `shift`: the offset from the base's own, in elements of the view.
TensorPtr Run::shifted_view(const c10::TensorImpl& base, const Layout& planned, int64_t shift) {
  int64_t start = base.storage_offset();
  auto itemsize = static_cast<int64_t>(base.itemsize());
  if (itemsize != planned.itemsize) start = start * itemsize / planned.itemsize;
  return over_storage(base, planned, ints_, start + shift);
}

void Run::run(const ViewStep& step) {
  const Layout& planned = layout(step.layout);
  int64_t shift = ints_[step.shift];
  if (slots_[step.base].tag() == Value::Tag::kRaw) {
    char* start = static_cast<char*>(slots_[step.base].raw());
    return slots_[step.out].set_raw(start + shift * planned.itemsize);
  }
  slots_[step.out].set_tensor(shifted_view(tensor(step.base), planned, shift));
}

void Run::run(const LaunchStep& step) {
  const KernelEntry& kernel = program_.kernels[static_cast<size_t>(step.kernel)];
  void** tensors = frame_.pointers.data();
  for (size_t n = 0, param = 0; n < step.tensors.size(); n++, param++) {
    if (param == kernel.written.size()) param = 0;  // of the next row
    const Value& value = slots_[step.tensors[n]];
    if (value.tag() == Value::Tag::kRaw) {
      tensors[n] = value.raw();
    } else {
      c10::TensorImpl& given = tensor(step.tensors[n]);
      tensors[n] = kernel.written[param] ? given.mutable_data() : const_cast<void*>(given.data());
    }
  }
  if (step.loaded) {
    return device(step.device)
        .launch({step.loaded.get(), tensors, static_cast<int32_t>(step.tensors.size()),
                 ints_ + step.ints, step.num_ints, floats_ + step.floats, ints_ + step.grid,
                 step.grid_rank, step.report});
  }
  int64_t units = ints_[step.units];
  if (units <= 0) return;
  LaunchArguments launch{kernel.function,
                         tensors,
                         ints_ + step.ints,
                         floats_ + step.floats,
                         static_cast<size_t>(ints_[step.scratch]),
                         &status_};
  const void* context = &launch;
  auto run = run_range;
  TableArguments table;
  if (step.num_rows > 0) {
    auto rows = static_cast<size_t>(step.num_rows);
    table = {launch, ints_ + step.rows, step.num_rows, step.tensors.size() / rows,
             static_cast<size_t>(step.num_ints) / rows};
    context = &table;
    run = run_rows;
  }
  if (units <= ints_[step.grain]) {
    run(context, 0, units);
  } else {
    parallel_range(units, ints_[step.grain], run, context);
  }
  if (status_ != 0) throw PlanError(ErrorKind::kStatus, status_, "");
}

// While a CUDA graph is captured, operators on the device draw the seed, so that each replay has
// its own; the state on the host would be fixed at capture.
void Run::run(const RandomSeedStep& step) {
  static const auto dtype = caffe2::TypeMeta::Make<int64_t>();
  static constexpr int64_t kSizes[] = {2}, kStrides[] = {1};
  bool on_device = step.device.type != kCpu && program_.runtime;
  c10::Allocator& allocator =
      on_device ? device(step.device.index).allocator() : *c10::GetCPUAllocator();
  TensorPtr made = empty_from(allocator, dtype, 16, kSizes, kStrides, 0);
  if (on_device && !device_->is_capturing()) {
    auto [seed, offset] = draw_seed(step.device.index, ints_[step.increment]);
    device_->store_pair(made->mutable_data(), seed, offset);
  } else {
    draw_seed_into(made);
  }
  slots_[step.out].set_tensor(std::move(made));
}

void Run::run(const HostReadStep& step) {
  const c10::TensorImpl& source = tensor(step.source);
  if (step.kind == ScalarKind::kFloat) {
    floats_[step.target] = read_float(source);
  } else {
    ints_[step.target] = step.kind == ScalarKind::kBool ? read_bool(source) : read_int(source);
  }
  check_status();
  compute(program_.segments[static_cast<size_t>(step.segment)], ints_, floats_);
}

void Run::run(const CheckRelationStep& step) const {
  int64_t difference = ints_[step.difference];
  bool holds = step.relation == RelationKind::kEq   ? difference == 0
               : step.relation == RelationKind::kNe ? difference != 0
                                                    : difference <= 0;
  if (!holds) throw PlanError(ErrorKind::kCheck, 0, step.message);
}

void Run::run(const CheckTensorStep& step) {
  bool holds = read_bool(tensor(step.condition));
  check_status();
  if (!holds) throw PlanError(ErrorKind::kCheck, 0, step.message);
}

void Run::run(const FreeStep& step) {
  for (Slot slot : step.slots) slots_[slot].clear();
}

// Clears a nested plan's arguments at the end of its run, also after an error.
struct HeldInputs {
  ~HeldInputs() { frame.clear_inputs(count); }

  Frame& frame;
  size_t count;
};

std::vector<TensorPtr> Run::shared(const std::vector<Slot>& slots) const {
  std::vector<TensorPtr> found;
  for (Slot slot : slots) {
    tensor(slot);
    found.push_back(slots_[slot].share());
  }
  return found;
}

std::vector<TensorPtr> Run::call(const Program& inner, std::vector<TensorPtr> given, Register sizes,
                                 int32_t num_sizes) {
  std::unique_ptr<Frame>& kept = frame_.nested[&inner];
  if (!kept) kept = std::make_unique<Frame>(inner);
  Frame& frame = *kept;
  std::vector<Value> inputs(given.size() + static_cast<size_t>(num_sizes));
  std::vector<Value> outputs(inner.outputs.size());
  for (size_t n = 0; n < given.size(); n++) inputs[n].set_tensor(std::move(given[n]));
  for (int32_t n = 0; n < num_sizes; n++) {
    inputs[given.size() + static_cast<size_t>(n)].set_int(ints_[sizes + n]);
  }
  HeldInputs held{frame, inputs.size()};
  Run nested(inner, constants_, frame, false);
  nested.take(inputs.data());
  nested.enter();
  nested.finish(outputs.data());
  std::vector<TensorPtr> results;
  for (Value& output : outputs) results.push_back(output.take());
  return results;
}

void Run::run(const BranchStep& step) {
  bool taken = read_bool(tensor(step.condition));
  check_status();
  const Program& inner = taken ? *step.if_true : *step.if_false;
  std::vector<TensorPtr> results = call(inner, shared(step.args), step.sizes, step.num_sizes);
  for (size_t n = 0; n < step.outs.size(); n++) {
    if (step.outs[n] != kNone) slots_[step.outs[n]].set_tensor(std::move(results[n]));
  }
}

// The row `number` of a tensor, which shares its memory.
TensorPtr row_of(const c10::TensorImpl& whole, int64_t number) {
  return tensor_over(whole.storage(), plain_keys(*whole.storage().unsafeGetStorageImpl()),
                     whole.dtype(), whole.sizes().slice(1), whole.strides().slice(1),
                     whole.storage_offset() + number * whole.stride(0));
}

void Run::run(const LoopStep& step) {
  std::vector<TensorPtr> carried = shared(step.carried);
  const std::vector<TensorPtr> given = shared(step.args);
  size_t count = carried.size();
  std::vector<TensorPtr> stacked;
  for (size_t n = count; n < step.outs.size(); n++) {
    stacked.push_back(allocated(layout(step.layouts[n])));
  }
  auto arguments = [&](int64_t turn, bool rows) {
    std::vector<TensorPtr> made = carried;
    if (rows) {
      for (Slot slot : step.rows) made.push_back(row_of(tensor(slot), turn));
    }
    made.insert(made.end(), given.begin(), given.end());
    return made;
  };
  int64_t turn = 0;
  for (;; turn++) {
    if (step.test.empty()) {
      if (turn >= ints_[step.count]) break;
    } else {
      auto answer = call(*step.test[0], arguments(turn, false), step.sizes, step.num_sizes);
      bool goes_on = read_bool(*answer.at(0));
      check_status();
      if (!goes_on) break;
    }
    auto results = call(*step.body, arguments(turn, true), step.sizes, step.num_sizes);
    for (size_t n = 0; n < results.size(); n++) {
      if (n < count) {
        carried[n] = std::move(results[n]);
      } else {
        copy_into(*row_of(*stacked[n - count], turn), *results[n]);
      }
    }
  }
  for (size_t n = 0; n < step.outs.size(); n++) {
    TensorPtr made = n < count ? carried[n] : stacked[n - count];
    if (n < count && turn == 0) {
      made = allocated(layout(step.layouts[n]));
      copy_into(*made, *carried[n]);
    }
    slots_[step.outs[n]].set_tensor(std::move(made));
  }
}

TensorPtr Run::alias(const Output& output, const Value& base) {
  KILN_CHECK(base.is_tensor(), "an output of the plan is a view of something that is no tensor");
  return shifted_view(*base.tensor(), layout(output.layout), ints_[output.shift]);
}

void Run::make_output(const Output& output, Value* outputs, Value& result) {
  switch (output.kind) {
    case OutputKind::kNone:
      return;
    case OutputKind::kInt:
      return result.set_int(ints_[output.operand]);
    case OutputKind::kBool:
      return result.set_bool(ints_[output.operand] != 0);
    case OutputKind::kFloat:
      return result.set_float(floats_[output.operand]);
    case OutputKind::kSlot:
    case OutputKind::kInput:
    case OutputKind::kOutput:
      break;
  }
  const Value& base =
      output.kind == OutputKind::kOutput ? outputs[output.operand] : slots_[output.operand];
  if (output.layout != kNone) return result.set_tensor(alias(output, base));
  result = base.copy();
}

void Run::results(Value* outputs) {
  for (size_t n = 0; n < program_.outputs.size(); n++) {
    outputs[n].clear();
    make_output(program_.outputs[n], outputs, outputs[n]);
  }
}

void Run::last_results(Value* outputs) {
  for (size_t n = 0; n < program_.outputs.size(); n++) {
    outputs[n].clear();
    if (!program_.outputs[n].is_early) make_output(program_.outputs[n], outputs, outputs[n]);
  }
}

// The caller gets the only reference to a result, so that it may keep its memory.
void Run::hand_over(const HandOverStep& step, Value* outputs) {
  for (int32_t n : step.outputs) make_output(program_.outputs[n], outputs, outputs[n]);
  for (int32_t n : step.outputs) {
    const Output& output = program_.outputs[n];
    bool owned = output.kind == OutputKind::kSlot &&
                 output.operand >= static_cast<Slot>(program_.inputs.size());
    if (owned) slots_[output.operand].clear();
  }
}

}  // namespace

Frame::Frame(const Program& program)
    : slots(static_cast<size_t>(program.num_slots)), ints(program.ints), floats(program.floats) {
  size_t widest = 0;
  for (const Step& step : program.steps) {
    const auto* launch = std::get_if<LaunchStep>(&step.data);
    if (launch) widest = std::max(widest, launch->tensors.size());
  }
  pointers.resize(widest);
  results.resize(program.outputs.size());
  known_keys.resize(program.inputs.size());
}

static std::unique_ptr<Program> connected(std::unique_ptr<Program> program,
                                          const Kernels& kernels) {
  connect(*program, kernels);
  return program;
}

Executor::Executor(std::unique_ptr<Program> program, std::vector<TensorPtr> constants,
                   const Kernels& kernels)
    : program_(connected(std::move(program), kernels)),
      constants_(std::move(constants)),
      brevity_(*program_, constants_) {
  install_memory_pool();
}

Executor::~Executor() { delete idle_.load(); }

void Executor::check_count(size_t given) const {
  size_t count = program_->inputs.size();
  if (given == count) return;
  throw PlanError(
      ErrorKind::kInput, -1,
      "the plan takes " + std::to_string(count) + " arguments, not " + std::to_string(given));
}

std::unique_ptr<Frame> Executor::take_frame() const {
  std::unique_ptr<Frame> frame(idle_.exchange(nullptr, std::memory_order_acquire));
  return frame ? std::move(frame) : std::make_unique<Frame>(*program_);
}

void Executor::give_back(std::unique_ptr<Frame> frame) const {
  Frame* expected = nullptr;
  if (idle_.compare_exchange_strong(expected, frame.get(), std::memory_order_release)) {
    frame.release();
  }
}

void Executor::run(Value* inputs, Value* outputs, bool donate) const {
  Call call(*this);
  Run run(*program_, constants_, *call.frame_, donate);
  run.take(inputs);
  run.enter();
  run.finish(outputs);
}

Executor::Call::Call(const Executor& executor)
    : executor_(executor), frame_(executor.take_frame()) {}

Executor::Call::~Call() {
  for (Value& slot : frame_->slots) slot.clear();
  for (Value& result : frame_->results) result.clear();
  executor_.give_back(std::move(frame_));
}

void Executor::Call::run(void (*unlock)(void*), void* lock) {
  Run run(*executor_.program_, executor_.constants_, *frame_, false);
  run.enter();
  if (!executor_.brevity_.holds(*executor_.program_, frame_->ints.data())) unlock(lock);
  run.finish(frame_->results.data());
}

struct Executor::Paused::Work {
  Run run;
};

Executor::Paused::Paused(const Executor& executor, Value* inputs, bool donate)
    : call_(executor),
      work_(new Work{{*executor.program_, executor.constants_, *call_.frame_, donate}}) {
  work_->run.take(inputs);
  work_->run.enter();
  work_->run.begin();
  work_->run.pause();
}

Executor::Paused::~Paused() = default;

void Executor::Paused::go_on(Value* outputs) {
  Run& run = work_->run;
  run.resume();
  if (const HandOverStep* step = run.advance()) {
    run.hand_over(*step, outputs);
  } else {
    run.end();
    run.last_results(outputs);
  }
  run.pause();
}

void rebuild_views(const Program& program, const Value* inputs, Value* outputs) {
  for (size_t n = 0; n < program.outputs.size(); n++) {
    const Output& output = program.outputs[n];
    if (output.layout == kNone) continue;
    const Value& base =
        output.kind == OutputKind::kOutput ? outputs[output.operand] : inputs[output.operand];
    const c10::TensorImpl& plain = *outputs[n].tensor();
    outputs[n].set_tensor(view_of(*base.tensor(), plain.dtype(), plain.sizes(), plain.strides(),
                                  plain.storage_offset()));
  }
}

}  // namespace kiln
