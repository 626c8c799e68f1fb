"""How the server is started for decoding one request at a time; the optimisations are in the ledger.

Arguments and variables are those of SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SUPPORTED_SGLANG = "0.5.23"

# Flag -> its values; a flag without a value has none.
Arguments = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Preset:
    """Arguments and environment of one way to decode; `accept_length` is what a random draft must pretend."""

    name: str
    about: str
    arguments: Arguments
    environment: Mapping[str, str] = field(default_factory=dict)
    accept_length: str | None = None
    has_draft: bool = False


_COMMON: Arguments = {
    "--max-running-requests": ("1",),
    "--cuda-graph-max-bs-decode": ("1",),
    "--context-length": ("16384",),  # 8,192 in, 1,024 out, and room
    "--mem-fraction-static": ("0.8",),
    "--disable-radix-cache": (),  # with it, linear attention can lose the overlap scheduler in silence
    "--attention-backend": ("flashmla",),  # verifies 8K a hundred times faster than triton does on an H200
    "--sampling-backend": ("pytorch",),  # greedy needs no kernel that is compiled at the first request
    "--grammar-backend": ("none",),
    "--random-seed": ("1",),
    "--decode-log-interval": ("1000000",),  # no line in the middle of a decode
    "--log-level-http": ("warning",),  # none for each request
}

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("plain", "one token a step, no speculation", _COMMON),
        Preset(
            "nextn",
            "the model's own next-token layer drafts five steps in a chain",
            {
                **_COMMON,
                "--speculative-algorithm": ("NEXTN",),
                "--speculative-num-steps": ("5",),
                "--speculative-eagle-topk": ("1",),
                "--speculative-num-draft-tokens": ("6",),
            },
            accept_length="3.25",
        ),
        Preset(
            "dspark",
            "a draft model proposes a block, the target verifies it",
            {
                **_COMMON,
                "--speculative-algorithm": ("DSPARK",),
                "--speculative-draft-attention-backend": ("triton",),
            },
            # Verifies every drafted token. The other modes need a calibration, which takes real weights, and
            # a table of costs, and save nothing with one request: see ragged-compact in the ledger.
            {"SGLANG_RAGGED_VERIFY_MODE": "static"},
            accept_length="5",
            has_draft=True,
        ),
    )
}
