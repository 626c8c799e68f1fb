"""Short names of kernels: what a person would call them, out of what the compiler wrote."""

from __future__ import annotations

import re
from functools import lru_cache

from latencylab.reports.format import clean

# Kernels that only say "some elementwise work": what they do stands in their template arguments.
_GENERIC = re.compile(r"elementwise|^reduce_kernel|^gpu_|^index_|^reduce_1Block|^DeviceReduce|^DeviceScan")
_TELLING = re.compile(
    r"\b([A-Za-z_]\w*?(?:Functor\w*|Ops|_kernel_cuda|_kernel_impl|_cuda_out|_kernel))(?=\W|$)"
)
_WRAPPERS = re.compile(
    r"^(?:gpu_\w+|[AB]?(?:Unary|Binary)Functor|index_elementwise_kernel|\w*elementwise_kernel\w*|reduce_kernel)$"
)
_NAMESPACES = re.compile(r"^(?:\w+::)+")
_MANGLED = re.compile(r"^_ZN?K?(?=\d)")
_OPEN, _CLOSE = "<([{", ">)]}"


@lru_cache(maxsize=4096)
def short_name(kernel: str) -> str:
    """The kernel's own name without return type, namespaces, template arguments and parameters.

    `void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, …>(…)` becomes
    `vectorized_elementwise_kernel<FillFunctor>`: generic kernels keep the one argument that tells them apart.
    Names that are none of this (Triton's, nvjet's, copies) stay as they are. Not markup-escaped.
    """
    name = clean(kernel).strip()
    if name.startswith(("Memcpy", "Memset", "triton_")):
        return name
    if _MANGLED.match(name):
        return _demangled(name)
    for noise in ("(anonymous namespace)::", "<unnamed>::", "{anonymous}::"):
        name = name.replace(noise, "")
    head, rest = _split(name)
    base = head.split()[-1] if head.split() else ""
    base = base.rsplit("::", 1)[-1].lstrip("*&")
    if not base:
        return name
    if rest.startswith("<") and _GENERIC.search(base):
        told = next((m for m in _TELLING.findall(rest) if not _WRAPPERS.match(m)), None)
        if told:
            return f"{base}<{told}>"
    return base


def collective_name(kind: str) -> str:
    """A kind of collective without namespaces; its group and size stay."""
    return _NAMESPACES.sub("", clean(kind))


def _split(name: str) -> tuple[str, str]:
    """The name up to its own first template argument or parameter, and what follows.

    A template of the enclosing class (`Outer<int>::kernel(…)`) is left out of the head.
    """
    head: list[str] = []
    depth = 0
    for i, char in enumerate(name):
        if depth == 0 and char in _OPEN and not _goes_on(name, i):
            return "".join(head), name[i:]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif depth == 0:
            head.append(char)
    return "".join(head), ""


def _goes_on(name: str, start: int) -> bool:
    """Whether the bracket that opens at `start` is followed by `::`, so that the name is still to come."""
    depth = 0
    for i in range(start, len(name)):
        if name[i] in _OPEN:
            depth += 1
        elif name[i] in _CLOSE and name[i - 1 : i + 1] != "->":
            depth -= 1
            if depth == 0:
                return name.startswith("::", i + 1)
    return False


def _demangled(name: str) -> str:
    """The last of the length-prefixed identifiers at the start of an Itanium-mangled name."""
    match = _MANGLED.match(name)
    at = match.end() if match else 0
    last = ""
    while digits := re.match(r"\d+", name[at:]):
        at += digits.end()
        length = int(digits.group())
        if length > len(name) - at:
            break
        part = name[at : at + length]
        last = last if part.startswith("_GLOBAL__N") and last else part
        at += length
    return last or name
