"""A toy of SGLang: the classes that the plugin hooks, at their paths, serving requests on a fake GPU."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from latencylab.runtime.plugin import register
from latencylab.runtime.settings import VARIABLES
from standin.device import Gpu, make_torch
from standin.registry import Registry


class ForwardMode(Enum):
    EXTEND = auto()
    DECODE = auto()


@dataclass
class Req:
    rid: str


@dataclass
class Batch:
    forward_mode: ForwardMode
    reqs: list[Req]


@dataclass
class ServerArgs:
    speculative_algorithm: str | None = None
    tp_size: int = 1
    api_key: str = "hidden"
    handle: object = field(default_factory=object)


@dataclass(frozen=True)
class Parallel:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1


@dataclass
class Toy:
    """The fake modules by name, and the parts that tests look at."""

    modules: dict[str, types.ModuleType]
    registry: Registry
    gpu: Gpu
    torch: Any
    scheduler_class: Any
    args: ServerArgs
    inbox: list[Any] = field(default_factory=list)
    on_turn: Callable[[Any, int], None] = lambda _scheduler, _turn: None
    turns: int = 0
    on_idle: Callable[[Any, int], None] = lambda _scheduler, _turn: None
    idle_turns: int = 0
    eagle_class: Any = None  # instead of EAGLEWorkerV2
    needs_cpu_seq_lens: bool = False  # what the attention backends ask for

    def install(self, monkeypatch: Any, env: dict[str, str]) -> None:
        """Put the modules where `import` finds them, set the environment, and load the plugin."""
        for name, module in self.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, text in env.items():
            monkeypatch.setenv(name, text)
        self.registry.load(register)

    def run(self) -> Any:
        """Make a scheduler and run its loop to the end of the inbox."""
        scheduler = self.scheduler_class(self.args, None)
        scheduler.run_event_loop()
        return scheduler


LEG_US = 150.0
COPY_US = 5.0


def make_toy(algorithm: str | None = None, *, drift: float = 0.0, parallel: Parallel | None = None) -> Toy:  # noqa: C901
    """A toy that decodes by this algorithm: None, "NEXTN" or "DSPARK"."""
    gpu, registry = Gpu(drift), Registry()
    torch = make_torch(gpu)
    args = ServerArgs(algorithm)
    toy = Toy({}, registry, gpu, torch, None, args)

    class FullCudaGraphBackend:
        def __init__(self, us: float) -> None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.us = us

        def replay(self, shape_key: Any, static_forward_batch: Any, **_: Any) -> None:
            self.graph.replay()

    class DecodeCudaGraphRunner:
        def __init__(self) -> None:
            self.backend = FullCudaGraphBackend(LEG_US)
            self.metadata: Any = None

        def load_batch(self, forward_batch: Any, pp_proxy_tensors: Any = None) -> None:
            if self.metadata is None:  # captured while serving, as the metadata graph is
                self.metadata = torch.cuda.CUDAGraph()
                self.metadata.capture_begin()
                torch.cuda.Event().record()
                self.metadata.capture_end()
            self.metadata.replay()

        def execute(self, forward_batch: Any) -> None:
            self.load_batch(forward_batch)
            self.backend.replay(1, forward_batch)

    class DraftRunner(DecodeCudaGraphRunner):
        def execute(self, forward_batch: Any, select_index: Any = None) -> None:
            self.backend.replay(1, forward_batch)

    class ExtendRunner(DraftRunner):
        def execute(self, forward_batch: Any, select_index: Any = None) -> None:
            self.backend.replay(1, forward_batch)

    class ModelRunner:
        def __init__(self) -> None:
            self.decode_cuda_graph_runner = DecodeCudaGraphRunner()

        def sample(self, logits_output: Any, forward_batch: Any) -> None:
            pass

    class TpModelWorker:
        def __init__(self) -> None:
            self.model_runner = ModelRunner()

        def forward_batch_generation(self, batch: Any, **_: Any) -> None:
            if batch.forward_mode is ForwardMode.DECODE:
                self.model_runner.decode_cuda_graph_runner.execute(batch)
            self.model_runner.sample(None, batch)

    class EagleDraftWorker:
        def __init__(self) -> None:
            self.cuda_graph_runner = DraftRunner()
            self.cuda_graph_runner_for_draft_extend = ExtendRunner()

        def draft(self, batch: Any) -> None:
            self.cuda_graph_runner.execute(batch)

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            self.cuda_graph_runner_for_draft_extend.execute(batch, None)

        def _draft_extend_for_prefill(self, batch: Any) -> None:
            pass

    class EAGLEWorkerV2:
        def __init__(self, target: Any) -> None:
            self.target = target
            self.draft_worker = EagleDraftWorker()

        def forward_batch_generation(self, batch: Any, on_publish: Any = None) -> None:
            if batch.forward_mode is ForwardMode.EXTEND:
                self.target.forward_batch_generation(batch)
                on_publish(torch.Tensor([8192]))
                self.draft_worker._draft_extend_for_prefill(batch)
                return
            self.draft_worker.draft(batch)
            self.verify(batch)
            on_publish(torch.Tensor([8193]))
            self.draft_worker._draft_extend_for_decode(batch, None)

        def verify(self, batch: Any) -> None:
            self.target.model_runner.decode_cuda_graph_runner.execute(batch)
            toy.modules["sglang.srt.speculative.eagle_utils"].eagle_sample(None, batch, None)

    class DraftBlockProposer:
        def __init__(self) -> None:
            self.runner = DecodeCudaGraphRunner()

        def propose(self, *, batch: Any) -> None:
            self.runner.execute(batch)

    class TargetVerifyExecutor:
        def __init__(self, target: Any) -> None:
            self.target = target

        def run_compact(self, *, batch: Any) -> None:
            self.target.model_runner.decode_cuda_graph_runner.execute(batch)

        def run_non_compact(self, *, batch: Any) -> None:
            self.run_compact(batch=batch)

        def accept_and_finalize(self, *, bs: int) -> None:
            pass

    class DSparkWorkerV2:
        def __init__(self, target: Any) -> None:
            self.target = target
            self._proposer = DraftBlockProposer()
            self._verify_executor = TargetVerifyExecutor(target)

        def forward_batch_generation(self, batch: Any, on_publish: Any = None) -> None:
            if batch.forward_mode is ForwardMode.EXTEND:
                self.target.forward_batch_generation(batch)
            else:
                self._proposer.propose(batch=batch)
                self._verify_executor.run_compact(batch=batch)
                self._verify_executor.accept_and_finalize(bs=1)
            on_publish(torch.Tensor([8193]))

    class FutureMap:
        def __init__(self, needs_cpu_seq_lens: bool) -> None:
            self.needs_cpu_seq_lens = needs_cpu_seq_lens
            self.publish_ready: Any = None
            self.lengths = torch.Tensor([0])
            self.copy_stream = torch.cuda.Stream()

        def resolve_seq_lens_cpu(self, batch: Any, stream_ordered: bool = False) -> None:
            if self.publish_ready is not None:
                self.publish_ready.wait(gpu.current)
            # Only what a draft belongs to has lengths that the host does not know.
            if algorithm is None or batch.forward_mode is ForwardMode.EXTEND or not self.needs_cpu_seq_lens:
                return
            if self.publish_ready is None:
                self.lengths.cpu()
                return
            self.copy_stream.wait_event(self.publish_ready)
            self.copy_stream.work(COPY_US)
            self.copy_stream.synchronize()

        def publish(self, future_indices: Any, new_seq_lens: Any, confidence: Any = None) -> None:
            self.publish_ready = self.publish_ready or torch.cuda.Event()
            self.publish_ready.record()
            self.lengths = new_seq_lens

        def stash(self, future_indices: Any, payload: Any) -> None:
            pass

    class SchedulerRequestReceiver:
        def recv_requests(self, local_reqs: Any = None) -> list[Any]:
            return [toy.inbox.pop(0)] if toy.inbox and toy.idle_turns > 3 else []

    class SchedulerProfilerManager:
        def __init__(self) -> None:
            self.profile: Any = None

        def _profile_batch_predicate(self, batch: Any) -> None:
            toy.on_turn(self, toy.turns)

        def _start_profile(self, stage: Any = None) -> None:
            self.profile = torch.profiler.profile(activities=["CPU", "GPU"], experimental_config=None)
            self.profile.start()

        def _stop_profile(self) -> None:
            self.profile.stop()

    class Scheduler:
        def __init__(self, server_args: Any, port_args: Any) -> None:
            self.enable_overlap = True
            self.forward_stream = gpu.current
            self.schedule_stream = torch.cuda.Stream()
            self.tp_worker = TpModelWorker()
            self.draft_worker: Any = {
                None: lambda: None,
                "NEXTN": lambda: (toy.eagle_class or EAGLEWorkerV2)(self.tp_worker),
                "DSPARK": lambda: DSparkWorkerV2(self.tp_worker),
            }.get(server_args.speculative_algorithm, lambda: None)()
            self.model_worker = self.draft_worker or self.tp_worker
            self.future_map = FutureMap(toy.needs_cpu_seq_lens)
            self.request_receiver = SchedulerRequestReceiver()
            self.profiler_manager = SchedulerProfilerManager()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            graph.capture_end()

        def run_event_loop(self) -> None:
            last, left, batch = None, 0, None
            while True:
                received = self.request_receiver.recv_requests(local_reqs=[])
                for rid, steps, chunks in received:
                    left, batch, prefills = steps, Batch(ForwardMode.EXTEND, [Req(rid)]), chunks
                batch = self.get_next_batch_to_run(running_batch=batch, last_batch=last)
                if batch is None and last is None:
                    self.on_idle()
                    toy.idle_turns += 1
                    toy.on_idle(self, toy.idle_turns)
                    if not toy.inbox and toy.idle_turns > 40:
                        return
                    continue
                toy.idle_turns = 0
                if batch is not None:
                    result = self.run_batch(batch)
                    toy.turns += 1
                if last is not None:
                    self.process_batch_result(*last)
                last = (batch, result) if batch is not None else None
                if batch is not None and batch.forward_mode is ForwardMode.EXTEND:
                    prefills -= 1
                    if not prefills:
                        batch = Batch(ForwardMode.DECODE, batch.reqs)
                elif batch is not None:
                    left -= 1
                    batch = batch if left else None

        def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
            return running_batch

        def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
            self.profiler_manager._profile_batch_predicate(batch)
            self.future_map.resolve_seq_lens_cpu(batch)
            if self.draft_worker is None:
                self.model_worker.forward_batch_generation(batch)
                self.future_map.publish(None, torch.Tensor([8193]))
            else:
                self.model_worker.forward_batch_generation(
                    batch, on_publish=lambda lens: self.future_map.publish(None, lens)
                )
            self.future_map.stash(None, None)
            done = torch.cuda.Event()
            self._copy_result_to_cpu(done, batch)
            return done

        def _copy_result_to_cpu(self, batch_result: Any, batch: Any) -> None:
            batch_result.record(gpu.current)

        def process_batch_result(self, batch: Any, result: Any) -> None:
            result.synchronize()

        def on_idle(self) -> None:
            pass

    parallel = parallel or Parallel()
    contents: dict[str, dict[str, Any]] = {
        "managers.scheduler": {"Scheduler": Scheduler},
        "managers.scheduler_components.request_receiver": {
            "SchedulerRequestReceiver": SchedulerRequestReceiver
        },
        "managers.scheduler_components.profiler_manager": {
            "SchedulerProfilerManager": SchedulerProfilerManager
        },
        "managers.overlap_utils": {"FutureMap": FutureMap},
        "managers.tp_worker": {"TpModelWorker": TpModelWorker},
        "model_executor.model_runner": {"ModelRunner": ModelRunner},
        "model_executor.runner.decode_cuda_graph_runner": {"DecodeCudaGraphRunner": DecodeCudaGraphRunner},
        "model_executor.runner_backend.full_cuda_graph_backend": {
            "FullCudaGraphBackend": FullCudaGraphBackend
        },
        "speculative.eagle_worker_v2": {
            "EagleDraftWorker": EagleDraftWorker,
            "EAGLEWorkerV2": EAGLEWorkerV2,
        },
        "speculative.eagle_draft_cuda_graph_runner": {"EAGLEDraftCudaGraphRunner": DraftRunner},
        "speculative.eagle_draft_extend_cuda_graph_runner": {"EAGLEDraftExtendCudaGraphRunner": ExtendRunner},
        "speculative.eagle_utils": {"eagle_sample": lambda verify_input, batch, logits_output: None},
        "speculative.dspark_components.dspark_draft": {"DraftBlockProposer": DraftBlockProposer},
        "speculative.dspark_components.dspark_verify": {"TargetVerifyExecutor": TargetVerifyExecutor},
        "runtime_context": {"get_parallel": lambda: parallel},
    }
    for path, members in contents.items():
        module = types.ModuleType(f"sglang.srt.{path}")
        vars(module).update(members)
        toy.modules[f"sglang.srt.{path}"] = module
    toy.modules["sglang.srt.plugins.hook_registry"] = registry.module()
    for path in list(toy.modules):
        parts = path.split(".")
        for length in range(1, len(parts)):
            parent = ".".join(parts[:length])
            toy.modules.setdefault(parent, types.ModuleType(parent))
    toy.modules |= {"torch": torch, "torch.cuda": torch.cuda, "torch.profiler": torch.profiler}
    toy.scheduler_class = Scheduler
    return toy
