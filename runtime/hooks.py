"""Which functions of SGLang and torch are hooked, for which way of decoding, and whether each hook took.

SGLang's registry sets class attributes and logs its own failures, so each target is looked up again after it
was applied: on its class, and on the class of the object that is in use, for a subclass that overrides a
method is not rewritten. Checked against SGLang 0.5.23.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latencylab.runtime.graphs import GraphHooks
from latencylab.runtime.recorder import Recorder

Hook = Callable[..., Any]
DECODE, NEXTN, DSPARK = "decode", "NEXTN", "DSpark"
EVERY = frozenset({DECODE, NEXTN, DSPARK})
# The names of `--speculative-algorithm` whose workers are the ones hooked here.
ALGORITHMS = {"": DECODE, "NONE": DECODE, "NEXTN": NEXTN, "EAGLE": NEXTN, "EAGLE3": NEXTN, "DSPARK": DSPARK}
TOOK = "took"
_NOWHERE = object()

_MANAGERS = "sglang.srt.managers"
_SPECULATIVE = "sglang.srt.speculative"
_RUNNER = "sglang.srt.model_executor"


@dataclass(frozen=True, slots=True)
class Target:
    """A function to hook.

    `hook` names what is done with it; `parameters` are those that the hook gives by position, in order;
    `modes` are the ways of decoding that call it; `used` is the path from the scheduler to the object on
    which it is called, "" where nothing is checked. One that is not `needed` may be missing. One of `detail`
    is about what happens within a step, and in place only where somebody asks for that: see `Details`.
    """

    path: str
    hook: str
    parameters: tuple[str, ...] = ()
    modes: frozenset[str] = EVERY
    used: str = ""
    needed: bool = True

    @property
    def detail(self) -> bool:
        return self.hook in _DETAIL or self.hook.startswith(("ll.", "leg "))


_DETAIL = {"process_result", "profile_predicate", "publish", "prepare", "backend_replay", "graph_replay"}


def _only(mode: str) -> frozenset[str]:
    return frozenset({mode})


TARGETS = (
    Target(f"{_MANAGERS}.scheduler.Scheduler.run_batch", "run_batch", ("self", "batch"), used="."),
    Target(f"{_MANAGERS}.scheduler.Scheduler.get_next_batch_to_run", "ll.get_batch", used="."),
    Target(f"{_MANAGERS}.scheduler.Scheduler.process_batch_result", "process_result", used="."),
    Target(f"{_MANAGERS}.scheduler.Scheduler._copy_result_to_cpu", "ll.copy_result", used="."),
    Target(f"{_MANAGERS}.scheduler.Scheduler.on_idle", "on_idle", ("self",), used="."),
    Target(
        f"{_MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver.recv_requests",
        "receive",
        used="request_receiver",
    ),
    Target(
        f"{_MANAGERS}.scheduler_components.profiler_manager.SchedulerProfilerManager._profile_batch_predicate",
        "profile_predicate",
        used="profiler_manager",
    ),
    Target(
        f"{_MANAGERS}.scheduler_components.profiler_manager.SchedulerProfilerManager._start_profile",
        "start_profile",
        used="profiler_manager",
    ),
    Target(
        f"{_MANAGERS}.overlap_utils.FutureMap.resolve_seq_lens_cpu", "ll.resolve_seq_lens", used="future_map"
    ),
    Target(
        f"{_MANAGERS}.overlap_utils.FutureMap.publish",
        "publish",
        ("self", "future_indices", "new_seq_lens"),
        used="future_map",
    ),
    Target(f"{_MANAGERS}.overlap_utils.FutureMap.stash", "ll.stash", used="future_map"),
    Target(f"{_RUNNER}.model_runner.ModelRunner.sample", "ll.sample", used="tp_worker.model_runner"),
    Target(
        f"{_RUNNER}.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.load_batch",
        "prepare",
        used="tp_worker.model_runner.decode_cuda_graph_runner",
    ),
    Target(
        f"{_RUNNER}.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.replay",
        "backend_replay",
        used="tp_worker.model_runner.decode_cuda_graph_runner.backend",
    ),
    Target(
        f"{_MANAGERS}.tp_worker.TpModelWorker.forward_batch_generation",
        "leg decode",
        modes=_only(DECODE),
        used="tp_worker",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft",
        "leg draft",
        modes=_only(NEXTN),
        used="draft_worker.draft_worker",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_worker_v2.EAGLEWorkerV2.verify",
        "leg verify",
        modes=_only(NEXTN),
        used="draft_worker",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_worker_v2.EagleDraftWorker._draft_extend_for_decode",
        "leg extend",
        modes=_only(NEXTN),
        used="draft_worker.draft_worker",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_worker_v2.EagleDraftWorker._draft_extend_for_prefill",
        "leg extend",
        modes=_only(NEXTN),
        used="draft_worker.draft_worker",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner.execute",
        "prepare",
        modes=_only(NEXTN),
        used="draft_worker.draft_worker.cuda_graph_runner",
    ),
    Target(
        f"{_SPECULATIVE}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        "prepare",
        modes=_only(NEXTN),
        used="draft_worker.draft_worker.cuda_graph_runner_for_draft_extend",
    ),
    Target(f"{_SPECULATIVE}.eagle_utils.eagle_sample", "ll.sample", modes=_only(NEXTN)),
    Target(
        f"{_SPECULATIVE}.dspark_components.dspark_draft.DraftBlockProposer.propose",
        "leg draft",
        modes=_only(DSPARK),
        used="draft_worker._proposer",
    ),
    Target(
        f"{_SPECULATIVE}.dspark_components.dspark_verify.TargetVerifyExecutor.run_compact",
        "leg verify",
        modes=_only(DSPARK),
        used="draft_worker._verify_executor",
    ),
    Target(
        f"{_SPECULATIVE}.dspark_components.dspark_verify.TargetVerifyExecutor.run_non_compact",
        "leg verify",
        modes=_only(DSPARK),
        used="draft_worker._verify_executor",
    ),
    Target(
        f"{_SPECULATIVE}.dspark_components.dspark_verify.TargetVerifyExecutor.accept_and_finalize",
        "ll.sample",
        modes=_only(DSPARK),
        used="draft_worker._verify_executor",
    ),
    Target("torch.cuda.CUDAGraph.replay", "graph_replay"),
    Target("torch.cuda.CUDAGraph.capture_begin", "capture_begin"),
    Target("torch.cuda.CUDAGraph.capture_end", "capture_end"),
    Target("torch.profiler.profile.__init__", "profile_init"),
    Target("torch.profiler.profile.start", "profile_start"),
    Target("torch.profiler.profile.stop", "profile_stop"),
)


def targets_of(mode: str) -> tuple[Target, ...]:
    """The targets of one way of decoding."""
    return tuple(target for target in TARGETS if mode in target.modes)


def make_hooks(recorder: Recorder, graphs: GraphHooks, profiles: Mapping[str, Hook]) -> dict[str, Hook]:
    """The hook of each target, by path; `profiles` are those of profilers, by name."""
    named: dict[str, Hook] = {
        "run_batch": recorder.run_batch,
        "process_result": recorder.process_result,
        "on_idle": recorder.on_idle,
        "receive": recorder.receive,
        "profile_predicate": recorder.profile_predicate,
        "publish": recorder.publish,
        "prepare": graphs.prepare,
        "backend_replay": graphs.backend_replay,
        "graph_replay": graphs.graph_replay,
        "capture_begin": graphs.capture_begin,
        "capture_end": graphs.capture_end,
        "leg decode": recorder.leg("decode", only_decoding=True),
        **{f"leg {name}": recorder.leg(name) for name in ("draft", "verify", "extend")},
        **profiles,
    }
    return {
        target.path: recorder.span(target.hook) if target.hook.startswith("ll.") else named[target.hook]
        for target in TARGETS
    }


class Details:
    """Our hooks of what happens within a step, put in place and taken away again: a call through one costs
    about a µs even where it records nothing, and there are two dozen a step.

    One that is not the outermost hook of its function stays in place, for the others are not ours to take
    away, and so does one of a function outside a class, of which modules hold copies.
    """

    def __init__(self, targets: tuple[Target, ...], hooks: Mapping[str, Hook]) -> None:
        self.on = True
        self._places = [place for target in targets if (place := _removable(target, hooks[target.path]))]

    def switch(self, on: bool) -> None:
        """Put all in place, or take all away."""
        self.on = on
        for owner, name, wrapper, original in self._places:
            setattr(owner, name, wrapper if on else original)


def _removable(target: Target, hook: Hook) -> tuple[Any, str, Any, Any] | None:
    """Where a hook of detail sits in its class, its wrapper, and what that wraps."""
    owner_path, _, name = target.path.rpartition(".")
    owner = pkgutil.resolve_name(owner_path) if target.detail else None
    wrapper = vars(owner).get(name) if isinstance(owner, type) else None
    original = getattr(wrapper, "__wrapped__", None)
    ours = any(_content(cell) is hook for cell in getattr(wrapper, "__closure__", None) or ())
    return (owner, name, wrapper, original) if ours and original is not None else None


def verify(targets: tuple[Target, ...], hooks: Mapping[str, Hook], scheduler: Any = None) -> dict[str, str]:
    """For each target "took" or why not; with a scheduler, also on the objects that it uses."""
    return {target.path: _verified(target, hooks[target.path], scheduler) for target in targets}


def _verified(target: Target, hook: Hook, scheduler: Any) -> str:
    owner_path, _, name = target.path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
        found = getattr(owner, name)
    except (ImportError, AttributeError, ValueError) as error:
        return f"missing: {error}"
    if not runs_through(found, hook):
        return "missing: the attribute is not our wrapper"
    if scheduler is None or not target.used:
        return TOOK
    used = _follow(scheduler, target.used)
    if used is _NOWHERE:
        return f"missing: the scheduler has no {target.used}, so the object in use is not known"
    if used is None:
        return TOOK  # this configuration has no such object, so nothing calls the target
    if not isinstance(used, owner):
        return f"missing: {type(used).__name__} is in use, which is no {owner.__name__}"
    if not runs_through(getattr(type(used), name), hook):
        return f"missing: {type(used).__name__} overrides it"
    return TOOK


def runs_through(function: Any, hook: Hook) -> bool:
    """Whether calling this function runs the hook: it is in a closure of the chain of wrappers."""
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(_content(cell) is hook for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _follow(start: Any, path: str) -> Any:
    """What lies at the end of the path: None where a part of it is None, `_NOWHERE` where one is absent."""
    found = start
    for part in filter(None, path.split(".")):
        found = None if found is None else getattr(found, part, _NOWHERE)
    return found


def refusals(mode: str | None, algorithm: str, found: Mapping[str, str]) -> list[str]:
    """What strict mode refuses to run without: each needed target that did not take."""
    if mode is None:
        return [f"the speculative algorithm {algorithm} has no hooks"]
    needed = {target.path for target in targets_of(mode) if target.needed}
    return [f"{path}: {how}" for path, how in found.items() if path in needed and how != TOOK]
