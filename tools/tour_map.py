"""The first part of docs/tour.md: what each folder holds, and the file that answers each question of a newcomer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = """\
kiln/api                    what users import: compile, explain, compiled modules
kiln/pipeline               one kiln.compile call: sessions, stages, regions, stored variants
kiln/capture/interpreter    Python bytecode run symbolically: opcodes/, variables/ (kinds of values), builtins/, graph breaks
kiln/capture/bytecode       code objects read and written; resume functions; one file per CPython version
kiln/capture/guards         guards collected while a frame is interpreted
kiln/graph/trace            fake tensors, recorder, functionalisation: from torch calls to a graph
kiln/graph/ops              ATen ops: decompositions and shape rules, by family
kiln/graph/prims            primitive ops as a table, with their shape rules and checks
kiln/graph/ir               graphs: nodes, text, verifier, interpreter, torch.fx view
kiln/graph/autograd         joint graph of forward and backward, partition, min-cut
kiln/graph/passes           passes over graphs, and their order
kiln/graph/offload          parts of a graph for another compiler
kiln/onnx                   graphs as ONNX models: rules, data, file
kiln/loops/lowering         from a graph to a loop program
kiln/loops/body             what a loop computes at one point, as data
kiln/loops/program          loop programs: data, text, verifier, interpreter, passes
kiln/loops/fusion           from a loop program to kernels: rules and vetoes of fusion, splits, order
kiln/loops/kernel           kernels and their launches: data, text, verifier, interpreter, passes
kiln/loops/codegen          kernels printed as C++ (cpp/) and Triton (triton/), by a dialect each
kiln/plan                   what a region does at run time: steps, memory, reference executor, file form
kiln/build                  g++, Triton worker processes, cubins
kiln/runtime                what a compiled program needs when it runs: executor, autograd, loading variants
kiln/runtime/guards         guards and sources as data, and the native tree that checks them
kiln/runtime/cuda_graphs    plans recorded as CUDA graphs and replayed
kiln/runtime/cache          the on-disk cache: private folder, seal, keys
kiln/symbolic               sizes as expressions, ranges, the shape environment, guards on sizes
kiln/tensor                 dtypes and layouts
kiln/support                options, errors, events, dumps, target machine
kiln/report                 what the compiler did: report, log, progress bar
kiln/backends               other compilers behind the same capture
kiln/debug                  bisect: the stage, the switch and the smallest graph that differ from eager
kiln/programs               kiln.export: whole programs, their signature and constraints, files
kiln/programs/static        programs as static C libraries without libtorch
kiln/programs/call          how an exported program is called: its signature, shapes and tensors
kiln/packages               kiln.load: compiled programs as files, run without the compiler
kiln/native                 the two C++ modules: stubs
kiln/cli                    python -m kiln: bisect, run, and the commands of kiln_bench
kiln_bench                  demo and bench: suites of models, measures of parts, architectures of transformers
benchmarks                  results
csrc/frames                 C++: dispatchers, guard checks, frame hook
csrc/executor               C++: plan executor, launches, memory pool, autograd node
csrc/runtime                C++: packages loaded and run without Python
csrc/support                C++: what the folders share
"""

MAP = {
    "Capture": (
        ("What happens at the first call of a compiled function?", "kiln/pipeline/session.py", "CompileSession"),
        ("What happens at the second call?", "csrc/frames/dispatcher.cpp", "vectorcall"),
        ("What does an opcode do?", "kiln/capture/interpreter/opcodes/control.py", "for_iter"),
        ("Which opcodes differ between CPython versions?", "kiln/capture/bytecode/v314.py", "TABLE"),
        (
            "How is a kind of object modelled, a dict for instance?",
            "kiln/capture/interpreter/variables/mapping.py",
            "Dict",
        ),
        ("Where is a call of a Python function inlined?", "kiln/capture/interpreter/variables/function.py", "inline"),
        ("Which C functions may run while tracing?", "kiln/capture/interpreter/pure.py", "is_pure"),
        (
            "How is a C function called that gets objects of the program?",
            "kiln/capture/interpreter/native_calls.py",
            "Natives",
        ),
        ("What becomes of exec, eval and locals()?", "kiln/capture/interpreter/builtins/evaluation.py", "run"),
        (
            "Where is the code that writes a mutated list back?",
            "kiln/capture/interpreter/variables/sequence.py",
            "emit_contents",
        ),
        (
            "In which form are side effects kept until the end of a frame?",
            "kiln/capture/interpreter/effects.py",
            "ContentsEffect",
        ),
        ("Which reasons break the graph?", "kiln/capture/interpreter/breaks.py", "DataDependentBranch"),
        (
            "Where is it decided that a call of a C function breaks the graph?",
            "kiln/capture/interpreter/variables/builtin.py",
            "call_unknown",
        ),
        (
            "Where does a graph break become calls of resume functions?",
            "kiln/capture/interpreter/break_codegen.py",
            "write_break",
        ),
        ("Where is the code of a resume function made?", "kiln/capture/bytecode/resume.py", "resume_code"),
        (
            "Where is it found that a layer equals an earlier one?",
            "kiln/capture/interpreter/repeated_layers/repeat.py",
            "call_repeatable",
        ),
        (
            "Which branch is speculated on, and what is its side exit?",
            "kiln/capture/interpreter/speculation.py",
            "Speculation",
        ),
        ("How is `torch.utils.checkpoint` traced?", "kiln/capture/interpreter/builtins/checkpoint.py", ""),
        ("What is compiled of a function that runs eager?", "kiln/pipeline/eager_callees.py", "CalleeCompiler"),
        ("How many variants may a function have?", "kiln/pipeline/session.py", "TooManyVariants"),
        ("When is a variant given up whose checks fail?", "kiln/pipeline/failed_checks.py", "check_failed"),
        ("What is remembered of the sizes of earlier calls?", "kiln/pipeline/seen_inputs.py", "SeenInputs"),
        ("Which of torch's modes run eager?", "kiln/pipeline/modes.py", "unknown_mode"),
        ("How long may a program be compiled?", "kiln/pipeline/compile_budget.py", "CompileBudget"),
        ("Why was something compiled again?", "kiln/capture/guards/explanation.py", "explain_failure"),
        ("Which resume functions do variants share?", "kiln/pipeline/dispatchers.py", "shared_resumes"),
        ("What becomes of `torch.cond`?", "kiln/capture/interpreter/builtins/control_flow_operators.py", "nested_cond"),
        (
            "When do both sides of an `if` on a tensor stay in the graph?",
            "kiln/capture/interpreter/if_conversion.py",
            "take_both_sides",
        ),
        ("When is a loop that data end a loop of the graph?", "kiln/capture/interpreter/data_loops.py", "take_loop"),
        (
            "When are both sides of an `if` on a number computed in front?",
            "kiln/capture/interpreter/number_branches.py",
            "take_both_numbers",
        ),
        ("What is a resume function?", "kiln/capture/bytecode/resume.py", "ResumeOrigin"),
        ("Which code behind a break runs in Python?", "kiln/pipeline/python_stretches.py", "python_stretch"),
        ("Which code touches plain data only?", "kiln/pipeline/plain_code.py", "plain_code"),
        (
            "What becomes of a class statement?",
            "kiln/capture/interpreter/builtins/class_statements.py",
            "build_class",
        ),
        (
            "What becomes of loss.backward() inside?",
            "kiln/capture/interpreter/builtins/leaf_gradients.py",
            "run_backward",
        ),
        (
            "Where is a step with its backward divided?",
            "kiln/graph/autograd/split_step.py",
            "split_step",
        ),
        (
            "What becomes of a hook on a tensor inside?",
            "kiln/capture/interpreter/builtins/tensor_hooks.py",
            "register_hook",
        ),
        (
            "What becomes of the hooks of parameters?",
            "kiln/capture/interpreter/builtins/leaf_hooks.py",
            "HookedBackward",
        ),
        ("What becomes of a tensor of a subclass?", "kiln/capture/interpreter/variables/subclass.py", "call"),
        ("What becomes of a DTensor?", "kiln/capture/interpreter/variables/dtensor.py", "run_natively"),
        (
            "What becomes of a launch of a Triton kernel of the program?",
            "kiln/capture/interpreter/builtins/triton_kernels.py",
            "launch",
        ),
        ("What becomes of Cls.count += 1?", "kiln/capture/interpreter/variables/class_changes.py", "set_outer_attr"),
        ("What becomes of np.zeros(3) inside?", "kiln/capture/interpreter/variables/known_array.py", "KnownArray"),
        ("Which torch calls is a function of NumPy?", "kiln/capture/interpreter/builtins/numpy_functions.py", "traced"),
        ("What becomes of random.random() and np.random.rand()?", "kiln/capture/interpreter/host_draws.py", "drawn"),
        ("When is a comparison of Python floats checked?", "kiln/capture/interpreter/speculation.py", "NumberCheck"),
        (
            "What becomes of print and of warnings?",
            "kiln/capture/interpreter/builtins/printing.py",
            "print_",
        ),
        (
            "When is an object of the frame freed, for a weak reference?",
            "kiln/capture/interpreter/lifetimes.py",
            "is_alive",
        ),
        (
            "What becomes of a yield of the compiled function?",
            "kiln/capture/interpreter/suspension_codegen.py",
            "write_suspension",
        ),
        (
            "What becomes of a tensor in an f-string?",
            "kiln/capture/interpreter/variables/deferred_text.py",
            "deferred_text",
        ),
        (
            "Which sizes that data decide are speculated on?",
            "kiln/capture/interpreter/data_values.py",
            "speculated_size",
        ),
        (
            "When is it assumed that floats are finite?",
            "kiln/graph/trace/finite.py",
            "truth_if_finite",
        ),
        (
            "Which torch function modes may a frame enter?",
            "kiln/capture/interpreter/builtins/function_modes.py",
            "enter_mode",
        ),
        ("Which models does the capture suite build?", "kiln_bench/capture/architectures.py", "small_config"),
        ("What does a graph break cost?", "kiln/api/break_cost.py", "break_seconds"),
    ),
    "Guards and shapes": (
        ("Which guards are there, and what does each expect?", "kiln/runtime/guards/guard.py", "GuardKind"),
        ("What does a guard on a dict check when it runs?", "csrc/frames/guard_tree.cpp", "keys_are"),
        ("When is a dict that did not change not walked again?", "csrc/frames/guard_replay.cpp", "replay"),
        ("When is a guard implied by a stronger one?", "kiln/capture/guards/collector.py", "GuardCollector"),
        ("When do two guards look at the same place?", "csrc/frames/guard_paths.cpp", "find"),
        ("How is it guarded that two inputs share memory?", "kiln/capture/interpreter/alias_guards.py", ""),
        ("When does a size that changes between calls become a symbol?", "kiln/symbolic/policy.py", "DimPolicy"),
        ("When does a question about sizes become a guard?", "kiln/symbolic/env.py", "ShapeEnv"),
        ("When do two sizes get one symbol?", "kiln/graph/passes/equal_sizes.py", "equal_symbols"),
        ("How are index expressions simplified?", "kiln/symbolic/simplify_in_ranges.py", ""),
    ),
    "Graph": (
        ("Which strides does a view get?", "kiln/graph/prims/meta/views.py", "permute_meta"),
        ("Which primitives does layer norm become?", "kiln/graph/ops/norms.py", "layer_norm"),
        ("Which primitive ops are there?", "kiln/graph/prims/rows.py", ""),
        ("Where is softmax written as primitives?", "kiln/graph/ops/softmax.py", "softmax"),
        ("In which dtype does an op compute?", "kiln/graph/ops/promotion.py", "result_dtype"),
        ("Which ops are left to ATen, with which shapes?", "kiln/graph/ops/library.py", ""),
        ("What happens to an op without a rule?", "kiln/graph/trace/fallback.py", "fallback_handler"),
        ("And to one with large tensors?", "kiln/graph/trace/large_probe.py", "probe_with_small_sizes"),
        ("How does an in-place op become functional?", "kiln/graph/trace/functionalise.py", "Functionaliser"),
        ("Where does autocast insert casts?", "kiln/graph/trace/autocast.py", "Casts"),
        ("Where do random numbers come from?", "kiln/graph/ops/random.py", "draw"),
        ("In which order do graph passes run, and why?", "kiln/graph/passes/pipeline.py", "GRAPH_PASSES"),
        ("Which algebraic rewrites are there?", "kiln/graph/passes/arithmetic.py", "ARITHMETIC"),
        ("When are convolutions channels-last?", "kiln/graph/passes/channels_last.py", "ChannelsLast"),
        ("Which convolutions are products on a GPU?", "kiln/graph/passes/lines_as_products.py", "LinesAsProducts"),
        ("Which convolutions are loops on a CPU?", "kiln/graph/passes/depthwise_lines.py", "DepthwiseLines"),
        ("Who adds the bias of a convolution?", "kiln/graph/passes/convolution_bias.py", "ConvolutionBias"),
        ("In which type are scattered values summed?", "kiln/graph/passes/wide_sums.py", "WideSums"),
        ("When is a matrix product padded?", "kiln/graph/passes/align_products.py", "AlignProducts"),
        ("Which values does the forward save for the backward?", "kiln/graph/autograd/min_cut.py", "values_to_save"),
        (
            "Which gradients exist after a branch?",
            "kiln/graph/trace/absent_gradients.py",
            "with_existence",
        ),
        ("Where is the joint graph cut in two?", "kiln/graph/autograd/partition.py", "partition"),
    ),
    "Loops and kernels": (
        ("Which values get a buffer, which are inlined?", "kiln/loops/lowering/realise.py", "choose_realised"),
        ("When do launches become one over a table?", "kiln/loops/fusion/launch_tables.py", "launch_tables"),
        ("Where is it decided that two loops fuse?", "kiln/loops/fusion/rules.py", "FUSION_RULES"),
        ("Why were two loops not fused?", "kiln/loops/fusion/vetoes.py", "VETOES"),
        ("When is a reduction split over blocks?", "kiln/loops/fusion/split.py", "is_splittable"),
        ("When does a kernel write over its argument?", "kiln/loops/fusion/take_over.py", "take_over"),
        ("In which order do kernel passes run, and why?", "kiln/loops/kernel/passes/pipeline.py", "TRITON_PASSES"),
        ("Where is softmax turned online?", "kiln/loops/kernel/passes/online_softmax.py", "OnlineSoftmax"),
        ("How large are Triton's blocks?", "kiln/loops/kernel/passes/choose_tiles.py", "choose_tiles"),
        ("How much parallelism must a kernel keep?", "kiln/loops/fusion/parallel.py", "pieces"),
        ("How is an operation spelled in C++?", "kiln/loops/codegen/cpp/dialect.py", "CPP"),
        ("When are float32 sums carried on in float64?", "kiln/loops/codegen/cpp/blocked_sums.py", "sums_in_blocks"),
        ("How is tanh computed in C++?", "kiln/loops/codegen/cpp/prelude/math.h", "tanh"),
        ("How are random numbers computed in kernels?", "kiln/loops/body/philox.py", ""),
        ("Where is g++ called?", "kiln/build/cpp_compile.py", "Compilation"),
        ("Which C++ compiler is taken?", "kiln/build/toolchain.py", "compiler_command"),
        ("What is the user told when g++ is missing?", "kiln/build/cpp_compile.py", "NoCompiler"),
        (
            "What is the user told when Triton or another package is missing?",
            "kiln/support/optional.py",
            "MissingPackage",
        ),
        ("Which processes compile Triton kernels?", "kiln/build/triton_workers.py", "Workers"),
    ),
    "Plan and run time": (
        ("Which stages lead from a graph to a plan?", "kiln/pipeline/stages.py", "GRAPH_TO_PLAN"),
        ("Which steps does a plan have?", "kiln/plan/steps/__init__.py", "STEPS"),
        ("When is each temporary of a plan alive?", "kiln/plan/arena.py", "plan_memory"),
        ("Which temporaries get the same memory?", "csrc/executor/arena.cpp", "update"),
        ("How is a step written into the bytes that the executor reads?", "kiln/plan/encode.py", "record"),
        ("Which values does a step put into its record?", "kiln/plan/steps/compute.py", "LaunchStep"),
        ("How are the arguments of an ATen call encoded?", "kiln/plan/operands.py", "Operands"),
        ("Which words does the native program have, in which order?", "kiln/plan/program_format.py", "NATIVE_STEPS"),
        ("Where is a step executed?", "csrc/executor/run.cpp", "run"),
        ("Where is an ATen result compared with the plan?", "csrc/executor/aten.cpp", ""),
        ("Where are saved tensors and their versions checked?", "csrc/executor/saved_values.cpp", ""),
        ("Which steps run in front of a CUDA graph?", "kiln/runtime/cuda_graphs/host_part.py", "split_host_part"),
        ("When is a CUDA graph recorded, when replayed?", "kiln/runtime/cuda_graphs/graphed.py", "GraphedPlan"),
        (
            "What happens to results of a CUDA graph that are still held at its next replay?",
            "kiln/runtime/cuda_graphs/graphed.py",
            "_with_held",
        ),
        ("When is the backward compiled?", "kiln/pipeline/backward.py", "BackwardCompiler"),
        ("How is a backward of eager code compiled?", "kiln/pipeline/eager_backward/session.py", "BackwardSession"),
        (
            "Which nodes of autograd's graph stay with torch's engine?",
            "kiln/pipeline/eager_backward/structure.py",
            "read_structure",
        ),
        ("Where is a compiled node put into autograd's graph?", "csrc/executor/autograd_graph.cpp", "splice"),
        ("How does `create_graph=True` work?", "kiln/runtime/eager_replay.py", "EagerReplay"),
        ("When are gradients that are differentiated again compiled?", "kiln/pipeline/gradient_regions.py", "find"),
        ("Why did the cache miss?", "kiln/runtime/cache/key_builder.py", "explain_miss"),
        ("What is in the key of a stored variant?", "kiln/pipeline/compile_key.py", "compile_key"),
        ("Where are variants kept between processes?", "kiln/pipeline/variant_store.py", "VariantStore"),
        (
            "What decides whether a stored variant fits this process and call?",
            "kiln/runtime/variant.py",
            "load_variant",
        ),
        ("How is a compiled variant saved and loaded?", "kiln/runtime/variant.py", "load_variant"),
        ("What does KILN_LOG print?", "kiln/report/listeners.py", ""),
        ("Where is a region compared with eager?", "kiln/pipeline/first_run.py", "FirstRun"),
        ("What can be switched off?", "kiln/pipeline/switches.py", "SWITCHES"),
        ("What does a collective become?", "kiln/capture/interpreter/collective_polyfills.py", "all_reduce"),
        (
            "What becomes of DistributedDataParallel in a step?",
            "kiln/capture/interpreter/builtins/data_parallel.py",
            "Replica",
        ),
        ("When do gradients leave a backward?", "kiln/plan/hand_over.py", "with_hand_overs"),
        ("What becomes of fully_shard?", "kiln/capture/interpreter/fully_shard_polyfills.py", "pre_forward"),
        ("When is a collective started and waited for?", "kiln/loops/fusion/overlap.py", "overlapped"),
        ("Which rank compiles?", "kiln/pipeline/shared_compiles.py", "SharedCompiles"),
        ("Which ops stay eager's kernels?", "kiln/graph/ops/eager_kernels.py", "EagerKernels"),
        ("Where is a fault narrowed down?", "kiln/debug/bisect.py", "bisect_reproduction"),
        ("What is in a package, and what is checked first?", "kiln/packages/manifest.py", "Manifest"),
        ("How is a package compiled and written?", "kiln/programs/package_writer.py", "compile_program"),
        ("How does a package run without Python?", "csrc/runtime/package.cpp", "run"),
        (
            "How does a program become a static library without libtorch?",
            "kiln/programs/static/library.py",
            "write_static_library",
        ),
        ("How do arguments become inputs of a program?", "kiln/programs/call/interface.py", "CallInterface"),
        ("Which nodes does another compiler get?", "kiln/graph/offload/split.py", "Splitter"),
        ("How does a graph become an ONNX model?", "kiln/onnx/writer.py", "to_onnx"),
        ("How is a program an `ExportedProgram` of torch?", "kiln/programs/torch_export.py", "Exporter"),
        ("Which options are there?", "kiln/support/options.py", "Options"),
    ),
}
"""Question, file, name in the file (empty where the whole file answers)."""


def folder_text() -> str:
    """The folders. Raises ValueError where one does not exist, or one of layers.toml is left out."""
    listed = {line.split()[0] for line in FOLDERS.splitlines()}
    layers = tomllib.loads((ROOT / "layers.toml").read_text())["layers"].keys() - {"kiln"}
    wrong = layers - listed | {folder for folder in listed if not (ROOT / folder).is_dir()}
    if wrong:
        raise ValueError(f"tools/tour_map.py: folders are missing or gone: {', '.join(sorted(wrong))}")
    return f"```\n{FOLDERS}```\n"


def map_text() -> Iterator[str]:
    """Tables of the map. Raises ValueError where a file or a name has gone."""
    for chapter, rows in MAP.items():
        yield f"| {chapter} | |\n|---|---|"
        for question, file, name in rows:
            path = ROOT / file
            if not path.is_file() or name not in re.findall(r"\w*", path.read_text()):
                raise ValueError(f"tools/tour_map.py: {file} does not have {name or 'that path'}: {question}")
            yield f"| {question} | `{file}`" + (f", `{name}` |" if name else " |")
        yield ""
