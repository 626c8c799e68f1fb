"""The stand-in for the real model: its shapes as one to four ranks of TP4 have them, with random weights.

A rank of tensor parallelism over four GPUs holds a quarter of every sharded width. A model of N such
quarters, run with N ranks, therefore gives each rank the kernels of the real TP4 run: N = 4 is the model
itself, N = 1 one rank of it on one GPU, without the collectives.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError

FULL_RANKS = 4
SHAPES = {"tp4-rank": "Ling-3.0-flash with the shapes that one rank of TP4 has, random weights"}
RANKS = (1, 2, 4)

# What SGLang splits over the ranks: attention heads (MLA, KDA and the draft's), the inner widths of dense,
# routed and shared experts, and the rows of embedding and lm_head. The router, its 512 experts, the latent
# widths of MLA and the hidden size are whole on every rank. The draft is assumed to be cut as the model is;
# its Markov head is held whole by each rank, so that its memory grows with N.
SHARDED = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "vocab_size",
)
_MODEL = "ling-3.0-flash.json"
_DRAFT = "ling-3.0-flash-dspark.json"


def model_config(ranks: int) -> dict[str, Any]:
    """config.json of the model cut to `ranks` ranks of TP4. Raises InputError for ranks not in `RANKS`.

    Token ids (eos, padding, mask) are below the vocabulary of one rank, so they hold for all.
    """
    return _cut(_MODEL, ranks)


def draft_config(ranks: int) -> dict[str, Any]:
    """config.json of the DSpark draft that goes with `model_config(ranks)`. Raises InputError."""
    return _cut(_DRAFT, ranks)


def write_shape(shape: str, ranks: int, folder: Path, *, draft: bool) -> tuple[Path, Path | None]:
    """Write the config of a shape's model, and of its draft, into `folder`; the folders that hold them.

    Raises InputError for an unknown shape or number of ranks, and OSError where they cannot be written.
    """
    if shape not in SHAPES:
        raise InputError(f"no shape is named {shape}; there is {', '.join(SHAPES)}")
    model = _write(folder / f"{shape}-x{ranks}", model_config(ranks))
    if not draft:
        return model, None
    return model, _write(folder / f"{shape}-x{ranks}-dspark", draft_config(ranks))


def _cut(name: str, ranks: int) -> dict[str, Any]:
    if ranks not in RANKS:
        raise InputError(f"a shape has {', '.join(map(str, RANKS))} ranks, not {ranks}")
    text = (files("latencylab.runtime") / "configs" / name).read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return {key: value // FULL_RANKS * ranks if key in SHARDED else value for key, value in config.items()}


def _write(folder: Path, config: dict[str, Any]) -> Path:
    """The folder, with its config.json; one that is there already stays whole while it is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".config.json.tmp"
    temporary.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "config.json")
    return folder
