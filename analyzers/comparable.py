"""Whether the times of two captures may be compared, and what was changed between them.

A mismatch (another GPU, driver, model, shape, workload, way of tracing, kind of step or leg) makes times
incomparable. A change (a commit, a package, a switch, an optimisation, a fault) is what a comparison is made
to measure. What only one side says is neither: it is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from latencylab.model.comparison import Change, Mismatch, Unknown
from latencylab.model.findings import Analysis

# Of the server's arguments, those that fix the shapes that a step computes; the others are changes.
SHAPE_ARGS = (
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
MODEL_ARGS = ("model_path", "model", "speculative_draft_model_path")
# What a process is called, where it was reached or wrote to: nothing that it computes.
_PLACES = (
    "host",
    "port",
    "nccl_port",
    "dist_init_addr",
    "served_model_name",
    "LATENCYLAB_DIR",
    "SGLANG_RUN_ID",
    "SGLANG_MOE_CONFIG_DIR",
)
# Of the workload, how much was measured (a change), and what came of it (neither).
_AMOUNTS = ("requests", "warmup", "seed", "profiled_steps")
_OUTCOMES = ("server_accept_length", "server_cap_length")

# What a comparison is about: its name, and the manifest's key.
_GROUPS = {
    "commit": "commit",
    "host": "host",
    "package": "packages",
    "server argument": "server_args",
    "switch": "env",
    "ledger": "ledger",
    "fault": "faults",
}
_DRIVER = "cuda_driver_version"
KIND, LEGS, LEG_SPANS = "kind of step", "legs", "leg spans"

Fields = dict[str, str]


def mismatches(base: Analysis, head: Analysis) -> tuple[Mismatch, ...]:
    """Why the two must not be compared; empty where they may be.

    Where a field is known on one side only there is no mismatch: see `unknowns`.
    """
    return (*_unusable(base, head), *conflicts(conditions(base), conditions(head)))


def unknowns(base: Analysis, head: Analysis) -> tuple[Unknown, ...]:
    """The fields that could have told the two apart, had both sides recorded them.

    A side without a manifest lacks that, and not each of its fields.
    """
    bare = [side.manifest is None for side in (base, head)]
    ours, theirs = conditions(base), conditions(head)
    told = {"GPU", "driver", "sync events"}
    if any(bare):
        found = [_lacking("manifest", bare)]
    else:
        told |= {*ours, *theirs}
        workload = [any(name.startswith("workload.") for name in side) for side in (ours, theirs)]
        groups = [_known_groups(base), _known_groups(head)]
        found = [_lacking("workload", [not has for has in workload])]
        found += [_lacking(name, [name not in its for its in groups]) for name in _GROUPS]
    found += [
        _lacking(field, [field not in ours, field not in theirs])
        for field in dict.fromkeys(("GPU", "driver", "sync events", *ours, *theirs))
        if field in told
    ]
    return tuple(one for one in found if one.lacking)


def differences(base: Analysis, head: Analysis) -> tuple[Change, ...]:
    """What was changed between the two: commit, host, versions, switches, optimisations, faults.

    Only what both sides record can have changed: a capture that names no packages has some all the same.
    """
    shared = _known_groups(base) & _known_groups(head)
    return changed(circumstances(base), circumstances(head), shared)


def recorded(analysis: Analysis) -> tuple[str, ...]:
    """Which groups of circumstances it records, be they empty."""
    return tuple(sorted(_known_groups(analysis)))


def conflicts(base: Fields, head: Fields) -> tuple[Mismatch, ...]:
    """The conditions known on both sides in which these differ."""
    return tuple(
        Mismatch(field, its, others)
        for field, its, others in _pairs(base, head)
        if its is not None and others is not None and its != others and not _is_launch(field, base, head)
    )


def _is_launch(field: str, base: Fields, head: Fields) -> bool:
    """Whether the legs differ only as one side launches some kernel by kernel: the same work, as its spans
    show, so a change.
    """
    if field != LEGS or LEG_SPANS not in base or ";" in base[LEGS] + head[LEGS]:
        return False
    if any(base.get(same) != head.get(same) for same in (KIND, LEG_SPANS)):
        return False
    fewer, more = sorted((side[LEGS].split(", ") for side in (base, head)), key=len)
    rest = iter(more)
    return all(leg in rest for leg in fewer)  # each after the one before


def changed(base: Fields, head: Fields, shared: Collection[str]) -> tuple[Change, ...]:
    """The circumstances in which these differ.

    Of a group only where it is `shared`, recorded by both; what is in no group must be known on both sides.
    """

    def is_known(field: str) -> bool:
        group = next((title for title in _GROUPS if field == title or field.startswith(f"{title} ")), None)
        return group in shared if group is not None else field in base and field in head

    return tuple(
        Change(field, its, others)
        for field, its, others in _pairs(base, head)
        if its != others and is_known(field)
    )


def name_mismatches(differing: Sequence[Mismatch]) -> str:
    """The fields with both sides' values: `kind of step: NEXTN against DSpark; legs: …`."""
    return "; ".join(f"{one.field}: {one.base} against {one.head}" for one in differing)


def unusable_because(analysis: Analysis) -> str:
    """Why nothing of a capture counts: what its manifest says, or its trace; "" for one that is usable."""
    if reason := _text((analysis.manifest or {}).get("unusable")):
        return reason
    return ", ".join(issue.code for issue in analysis.integrity.issues if issue.severity == "error")


def _pairs(base: Fields, head: Fields) -> Iterator[tuple[str, str | None, str | None]]:
    for field in dict.fromkeys((*base, *head)):
        yield field, base.get(field), head.get(field)


def _lacking(field: str, lacks: Sequence[bool]) -> Unknown:
    """Which side lacks a field; "" for neither."""
    return Unknown(field, "both" if all(lacks) else "base" if lacks[0] else "head" if lacks[1] else "")


def _unusable(base: Analysis, head: Analysis) -> Iterator[Mismatch]:
    sides = [_integrity(side) for side in (base, head)]
    if any(side.startswith("unusable") for side in sides):
        yield Mismatch("integrity", *sides)


def _integrity(analysis: Analysis) -> str:
    """The trace's status, or why the capture is unusable."""
    reason = unusable_because(analysis)
    return f"unusable ({reason})" if reason else analysis.integrity.status


def conditions(analysis: Analysis) -> Fields:
    """What must agree between two captures, as far as it is known; what is not known has no entry."""
    manifest = analysis.manifest or {}
    arguments = _table(manifest.get("server_args"))
    names = sorted({rank.device_name for rank in analysis.ranks if rank.device_name})
    drivers = sorted({version for rank in analysis.ranks if (version := rank.tracing.versions.get(_DRIVER))})
    fields = {
        "GPU": ", ".join(names) or _text(manifest.get("gpu")),
        "GPU by the manifest": _text(manifest.get("gpu")) if names else "",
        "driver": _text(manifest.get("driver")),
        "CUDA driver": ", ".join(drivers),
        "ranks": ", ".join(str(rank.rank) for rank in analysis.ranks),
        KIND: _of_ranks(analysis, lambda place: analysis.ranks[place].main.kind or ""),
        LEGS: _of_ranks(analysis, lambda place: _legs(analysis, place)),
        LEG_SPANS: ", ".join(sorted({leg for rank in analysis.ranks for leg in rank.tracing.leg_spans})),
        **{key: _model(arguments.get(key)) for key in MODEL_ARGS},
        **{key: _text(arguments.get(key)) for key in SHAPE_ARGS},
        **{f"workload.{key}": value for key, value in _flat(_workload(manifest))},
        **_tracing(analysis),
    }
    return {field: value for field, value in fields.items() if value}


def _workload(manifest: dict[str, Any], amounts: bool = False) -> dict[str, Any]:
    """What was asked of the model, or only how much of it was measured."""
    return {
        key: value
        for key, value in _table(manifest.get("workload")).items()
        if (key in _AMOUNTS) == amounts and key not in _OUTCOMES
    }


def _known_groups(analysis: Analysis) -> set[str]:
    """What of its circumstances a capture records; of packages none at all means that they are not known."""
    manifest = analysis.manifest or {}
    return {
        title
        for title, key in _GROUPS.items()
        if manifest.get(key) is not None and (manifest[key] or key in ("env", "faults", "ledger"))
    }


def circumstances(analysis: Analysis) -> Fields:
    """All that a capture records of what may differ between two, each as a field with its value."""
    manifest = analysis.manifest or {}
    fields = {
        "steps found by": ", ".join(sorted({rank.main.steps.source for rank in analysis.ranks})),
        LEGS: _of_ranks(analysis, lambda place: _legs(analysis, place)),
    }
    for rank in analysis.ranks:
        fields |= {name: text for name, text in rank.tracing.versions.items() if name != _DRIVER}
    known = _known_groups(analysis)
    for title, key in _GROUPS.items():
        if title in known:
            skipped = (*SHAPE_ARGS, *MODEL_ARGS, *_PLACES) if key == "server_args" else _PLACES
            fields |= {
                f"{title} {name}" if name else title: _model(text) if name.endswith("_path") else text
                for name, text in _flat(manifest[key])
                if name not in skipped
            }
    fields |= {f"workload {name}": text for name, text in _flat(_workload(manifest, amounts=True))}
    return {field: value for field, value in fields.items() if value}


def _tracing(analysis: Analysis) -> Fields:
    """Which of the profiler's costly records were on, on any rank."""
    modes = [rank.tracing for rank in analysis.ranks]
    syncs = [mode.sync_events for mode in modes if mode.sync_events is not None]
    return {
        "Python stacks": _switch(any(mode.stacks for mode in modes)),
        "tensor shapes": _switch(any(mode.shapes for mode in modes)),
        "sync events": _switch(any(syncs)) if syncs else "",
    }


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _legs(analysis: Analysis, place: int) -> str:
    main = analysis.ranks[place].main
    return "" if "legs" in main.abstained else ", ".join(leg.name for leg in main.legs)


def _of_ranks(analysis: Analysis, value: Callable[[int], str]) -> str:
    """A value that all ranks share, or the value of each."""
    values = [value(place) for place in range(len(analysis.ranks))]
    if len(set(values)) <= 1:
        return values[0] if values else ""
    return "; ".join(
        f"rank {rank.rank}: {its}" for rank, its in zip(analysis.ranks, values, strict=True) if its
    )


def _model(path: Any) -> str:
    """A model by the last part of its path: machines keep models in different folders."""
    return PurePosixPath(path).name if isinstance(path, str) else _text(path)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested data as rows: `a.b` and the text of what stands there; empty or null gives none."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{place}]")
    elif text := _text(value):
        yield path, text


def _text(value: Any) -> str:
    """A value of a manifest in words; "" for what is not known."""
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, list):
        return ", ".join(_text(inner) for inner in value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
