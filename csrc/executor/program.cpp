#include "executor/program.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "executor/aten.h"

namespace kiln {

namespace {

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
    Input input;
    input.name = in.text();
    input.scalar = static_cast<ScalarKind>(in.word());
    input.number = in.small();
    program.inputs.push_back(std::move(input));
  }
  for (size_t n = in.count(); n > 0; n--) {
    Binding binding;
    binding.kind = static_cast<BindingKind>(in.word());
    binding.slot = in.small();
    binding.dim = in.small();
    binding.target = in.small();
    program.bindings.push_back(binding);
  }
  for (Input& input : program.inputs) input.layout = in.small();
}

void read_layouts(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    Layout layout;
    layout.dtype = static_cast<c10::ScalarType>(in.word());
    layout.meta = c10::scalarTypeToTypeMeta(layout.dtype);
    layout.itemsize = static_cast<int64_t>(layout.meta.itemsize());
    layout.device_type = static_cast<int8_t>(in.word());
    layout.device_index = static_cast<int8_t>(in.word());
    layout.rank = in.small();
    layout.sizes = in.small();
    layout.strides = in.small();
    layout.offset = in.small();
    layout.bytes = in.small();
    program.layouts.push_back(layout);
  }
}

void read_kernels(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    KernelEntry kernel;
    kernel.symbol = in.text();
    kernel.on_device = in.word() != 0;
    kernel.written.resize(in.count());
    for (uint8_t& written : kernel.written) written = in.word() != 0;
    program.kernels.push_back(std::move(kernel));
  }
  for (size_t n = in.count(); n > 0; n--) {
    RawBuffer buffer;
    buffer.first = in.small();
    buffer.last = in.small();
    buffer.layout = in.small();
    program.buffers.push_back(buffer);
  }
}

std::unique_ptr<Program> read_program(Reader in, const std::vector<std::string>& strings);

// Reads the fields of a step, each by its type.
struct FieldReader {
  template <typename... Fields>
  void operator()(Fields&... fields) {
    (read(fields), ...);
  }

  void read(int32_t& field) { field = in.small(); }
  void read(int8_t& field) { field = static_cast<int8_t>(in.word()); }
  void read(ScalarKind& field) { field = static_cast<ScalarKind>(in.word()); }
  void read(RelationKind& field) { field = static_cast<RelationKind>(in.word()); }
  void read(std::string& field) { field = in.text(); }
  void read(DevicePlace& field) { (*this)(field.type, field.index); }
  void read(Argument& field) { field = read_argument(in); }
  void read(std::pair<std::string, Argument>& field) { (*this)(field.first, field.second); }
  void read(std::unique_ptr<Program>& field) { field = read_program(in.part(), strings); }
  template <typename Item>
  void read(std::vector<Item>& items) {
    items.resize(in.count());
    for (Item& item : items) read(item);
  }

  Reader& in;
  const std::vector<std::string>& strings;
};

// Makes `data` a step of kind `number` and reads it.
template <size_t number = 0>
void read_step_data(size_t wanted, FieldReader read, StepData& data) {
  if constexpr (number == std::variant_size_v<StepData>) {
    refuse("the program has an unknown step");
  } else if (wanted == number) {
    std::apply(read, data.emplace<number>().fields());
  } else {
    read_step_data<number + 1>(wanted, read, data);
  }
}

void read_step(Reader& in, Program& program) {
  Step& step = program.steps.emplace_back();
  step.origin = in.small();
  auto kind = static_cast<size_t>(in.word());
  read_step_data(kind, FieldReader{in, program.strings}, step.data);
  program.hands_over |= std::holds_alternative<HandOverStep>(step.data);
}

void read_registers(Reader& in, Program& program) {
  program.ints.resize(in.count());
  for (int64_t& value : program.ints) value = in.word();
  program.floats.resize(in.count());
  for (double& value : program.floats) value = std::bit_cast<double>(in.word());
  program.segments.resize(in.count());
  for (std::vector<Operation>& segment : program.segments) {
    segment.resize(in.count());
    for (Operation& operation : segment) {
      operation.kind = static_cast<OperationKind>(in.word());
      operation.target = in.small();
      operation.a = in.small();
      operation.b = in.small();
    }
  }
}

void read_outputs(Reader& in, Program& program) {
  for (size_t n = in.count(); n > 0; n--) {
    Output output;
    output.kind = static_cast<OutputKind>(in.word());
    output.operand = in.small();
    output.layout = in.small();
    output.shift = in.small();
    program.has_views |= output.layout != kNone;
    program.outputs.push_back(output);
  }
}

void mark_early_outputs(Program& program) {
  for (const Step& step : program.steps) {
    const auto* hand_over = std::get_if<HandOverStep>(&step.data);
    if (!hand_over) continue;
    for (int32_t n : hand_over->outputs) program.outputs.at(static_cast<size_t>(n)).is_early = true;
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
  if (program->hands_over) mark_early_outputs(*program);
  read_registers(in, *program);
  program->mutated = in.list();
  program->donated = in.list();
  program->bumped = in.list();
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
