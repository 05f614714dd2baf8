#include "executor/program.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "executor/aten.h"

namespace kiln {

namespace {

constexpr int64_t kMagic = 0x4E4C494B;
constexpr int64_t kFormat = 2;

[[noreturn]] void refuse(const std::string& problem) {
  throw PlanError(ErrorKind::kProgram, 0, problem);
}

// Reads words in the order in which kiln/plan/encode.py wrote them.
class Reader {
 public:
  Reader(const int64_t* at, const int64_t* end, const std::vector<std::string>& strings)
      : at_(at), end_(end), strings_(strings) {}

  int64_t word() {
    if (at_ == end_) refuse("the program is cut short");
    return *at_++;
  }
  int32_t small() { return static_cast<int32_t>(word()); }
  const std::string& text() { return strings_.at(static_cast<size_t>(word())); }
  size_t count() {
    int64_t n = word();
    if (n < 0 || n > (end_ - at_) + 1) refuse("the program has a bad count");
    return static_cast<size_t>(n);
  }
  std::vector<int32_t> list() {
    std::vector<int32_t> items(count());
    for (int32_t& item : items) item = small();
    return items;
  }
  Reader part() {
    size_t n = count();
    if (n > static_cast<size_t>(end_ - at_)) refuse("the program is cut short");
    Reader inner(at_, at_ + n, strings_);
    at_ += n;
    return inner;
  }

 private:
  const int64_t* at_;
  const int64_t* end_;
  const std::vector<std::string>& strings_;
};

Argument read_argument(Reader& in) {
  Argument made{static_cast<ArgumentKind>(in.word())};
  switch (made.kind) {
    case ArgumentKind::kNone:
      break;
    case ArgumentKind::kString:
      made.text = in.text();
      break;
    case ArgumentKind::kDevice:
    case ArgumentKind::kInts:
      made.value = in.word();
      made.count = in.word();
      break;
    case ArgumentKind::kList:
      made.count = in.word();
      for (int64_t n = 0; n < made.count; n++) made.items.push_back(read_argument(in));
      break;
    default:
      made.value = in.word();
  }
  return made;
}

void read_inputs(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    Input one;
    one.name = in.text();
    one.scalar = static_cast<ScalarKind>(in.word());
    one.number = in.small();
    program.inputs.push_back(std::move(one));
  }
  for (size_t n = in.count(); n > 0; n--) {
    Binding one;
    one.kind = static_cast<BindingKind>(in.word());
    one.slot = in.small();
    one.dim = in.small();
    one.target = in.small();
    program.bindings.push_back(one);
  }
  for (Input& one : program.inputs) one.layout = in.small();
}

void read_layouts(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    Layout one;
    one.dtype = static_cast<c10::ScalarType>(in.word());
    one.meta = c10::scalarTypeToTypeMeta(one.dtype);
    one.itemsize = static_cast<int64_t>(one.meta.itemsize());
    one.device_type = static_cast<int8_t>(in.word());
    one.device_index = static_cast<int8_t>(in.word());
    one.rank = in.small();
    one.sizes = in.small();
    one.strides = in.small();
    one.offset = in.small();
    one.bytes = in.small();
    program.layouts.push_back(one);
  }
}

void read_kernels(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    KernelEntry one;
    one.symbol = in.text();
    one.on_device = in.word() != 0;
    one.written.resize(in.count());
    for (uint8_t& written : one.written) written = in.word() != 0;
    program.kernels.push_back(std::move(one));
  }
  for (size_t n = in.count(); n > 0; n--) {
    RawBuffer one;
    one.slot = in.small();
    one.first = in.small();
    one.last = in.small();
    program.buffers.push_back(one);
  }
}

void read_launch(Reader& in, Program& program, Step& step) {
  Launch one;
  one.kernel = in.small();
  one.tensors = in.list();
  one.ints = in.small();
  one.floats = in.small();
  one.units = in.small();
  one.grain = in.small();
  one.scratch = in.small();
  one.grid = in.small();
  one.grid_rank = in.small();
  one.num_ints = in.small();
  one.device = static_cast<int8_t>(in.small());
  step.a = static_cast<int32_t>(program.launches.size());
  program.launches.push_back(std::move(one));
}

void read_call(Reader& in, Program& program, Step& step) {
  CallSpec one;
  one.target = in.text();
  for (size_t n = in.count(); n > 0; n--) one.args.push_back(read_argument(in));
  for (size_t n = in.count(); n > 0; n--) {
    std::string name = in.text();
    one.kwargs.emplace_back(std::move(name), read_argument(in));
  }
  for (size_t n = in.count(); n > 0; n--) {
    one.outs.push_back(in.small());
    one.layouts.push_back(in.small());
  }
  step.a = static_cast<int32_t>(program.calls.size());
  program.calls.push_back(std::move(one));
}

std::unique_ptr<Program> read_program(Reader in, const std::vector<std::string>& strings);

void read_branch(Reader& in, Program& program, Step& step) {
  Branch one;
  step.b = in.small();
  one.args = in.list();
  one.outs = in.list();
  one.if_true = read_program(in.part(), program.strings);
  one.if_false = read_program(in.part(), program.strings);
  step.a = static_cast<int32_t>(program.branches.size());
  program.branches.push_back(std::move(one));
}

int operand_count(StepKind kind) {
  switch (kind) {
    case StepKind::kAllocate:
    case StepKind::kCopy:
    case StepKind::kConstant:
    case StepKind::kCheckTensor:
      return 2;
    case StepKind::kAllocateReuse:
    case StepKind::kRawAllocate:
    case StepKind::kCheckRelation:
      return 3;
    default:
      return 4;
  }
}

void read_operands(Reader& in, Step& step) {
  int32_t* operands[] = {&step.a, &step.b, &step.c, &step.d};
  for (int n = 0; n < operand_count(step.kind); n++) *operands[n] = in.small();
}

void read_step(Reader& in, Program& program) {
  Step step{};
  step.origin = in.small();
  step.a = step.b = step.c = step.d = kNone;
  step.kind = static_cast<StepKind>(in.word());
  switch (step.kind) {
    case StepKind::kLaunch:
      read_launch(in, program, step);
      break;
    case StepKind::kCallAten:
      read_call(in, program, step);
      break;
    case StepKind::kBranch:
      read_branch(in, program, step);
      break;
    case StepKind::kFree:
      step.a = static_cast<int32_t>(program.frees.size());
      program.frees.push_back(in.list());
      break;
    default:
      if (step.kind > StepKind::kBranch) refuse("the program has an unknown step");
      read_operands(in, step);
  }
  program.steps.push_back(step);
}

void read_registers(Reader& in, Program& program) {
  program.ints.resize(in.count());
  for (int64_t& value : program.ints) value = in.word();
  program.floats.resize(in.count());
  for (double& value : program.floats) value = std::bit_cast<double>(in.word());
  program.segments.resize(in.count());
  for (std::vector<Operation>& segment : program.segments) {
    segment.resize(in.count());
    for (Operation& one : segment) {
      one.kind = static_cast<OperationKind>(in.word());
      one.target = in.small();
      one.a = in.small();
      one.b = in.small();
    }
  }
}

void read_outputs(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    Output one;
    one.kind = static_cast<OutputKind>(in.word());
    one.operand = in.small();
    one.layout = in.small();
    one.shift = in.small();
    program.has_views |= one.layout != kNone;
    program.outputs.push_back(one);
  }
}

// Gives each arena buffer the layout of the step that allocates it, and that step the buffer.
void connect_buffers(Program& program) {
  for (size_t n = 0; n < program.buffers.size(); n++) {
    RawBuffer& buffer = program.buffers[n];
    Step& step = program.steps.at(static_cast<size_t>(buffer.first));
    if (step.kind != StepKind::kRawAllocate) refuse("a raw buffer has no allocation");
    buffer.layout = step.b;
    step.d = static_cast<int32_t>(n);
  }
}

std::unique_ptr<Program> read_program(Reader in, const std::vector<std::string>& strings) {
  auto program = std::make_unique<Program>();
  program->strings = strings;
  program->name = in.text();
  program->num_slots = in.small();
  program->num_constants = in.small();
  read_inputs(in, *program);
  read_layouts(in, *program);
  read_kernels(in, *program);
  for (size_t n = in.count(); n > 0; n--) read_step(in, *program);
  read_outputs(in, *program);
  read_registers(in, *program);
  program->mutated = in.list();
  program->donated = in.list();
  connect_buffers(*program);
  return program;
}

std::vector<std::string> read_strings(const char* at, const char* end, int64_t count) {
  std::vector<std::string> strings;
  for (int64_t n = 0; n < count; n++) {
    int64_t length = 0;
    if (end - at < 8) refuse("the program is cut short");
    std::memcpy(&length, at, 8);
    at += 8;
    if (length < 0 || length > end - at) refuse("the program is cut short");
    strings.emplace_back(at, static_cast<size_t>(length));
    at += length;
  }
  return strings;
}

}  // namespace

Program::Program() = default;
Program::~Program() = default;

std::unique_ptr<Program> decode_program(const char* data, size_t size) {
  int64_t head[4];
  if (size < sizeof head) refuse("the program is cut short");
  std::memcpy(head, data, sizeof head);
  if (head[0] != kMagic || head[1] != kFormat) refuse("the program is of another format");
  size_t words = static_cast<size_t>(head[2]);
  if (head[2] < 0 || words > (size - sizeof head) / 8) refuse("the program is cut short");
  std::vector<int64_t> body(words);
  const char* start = data + sizeof head;
  if (words) std::memcpy(body.data(), start, words * 8);
  std::vector<std::string> strings = read_strings(start + words * 8, data + size, head[3]);
  return read_program(Reader(body.data(), body.data() + words, strings), strings);
}

}  // namespace kiln
