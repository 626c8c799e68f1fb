"""The guard of quality: how many of the GSM8K questions a server answers rightly.

Needs real weights and the data, a JSONL file whose lines have `question` and `answer`, the result standing
after #### in the answer. The prompt holds worked examples, the answers are greedy, and the result is the last
number of the text, as is usual for this set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.runtime.check import GreedyServer

QUESTIONS = 1319
FLOOR = 0.90
SHOTS = 5
MAX_TOKENS = 512
_STOP = ("Question:", "\n\nQuestion")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answer: str

    @property
    def result(self) -> Decimal:
        return Decimal(self.answer.rpartition("####")[2].strip().replace(",", ""))


@dataclass(frozen=True, slots=True)
class Score:
    """How many answers were right, of how many."""

    right: int
    asked: int
    floor: float

    @property
    def share(self) -> float:
        return self.right / self.asked

    @property
    def passed(self) -> bool:
        return self.share >= self.floor

    def line(self) -> str:
        return (
            f"GSM8K: {self.right} of {self.asked} right, {self.share:.4f} against a floor of {self.floor:g}"
        )


def read_questions(path: Path) -> tuple[Question, ...]:
    """The questions of a JSONL file. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no GSM8K data ({getattr(error, 'strerror', None) or error})") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = Question(str(row["question"]), str(row["answer"]))
            _ = question.result
        except (ValueError, KeyError, TypeError, ArithmeticError):
            raise InputError(f"{path}: line {number} has no question, or no answer after ####") from None
        found.append(question)
    if not found:
        raise InputError(f"{path}: no questions in it")
    return tuple(found)


def score(
    server: GreedyServer,
    questions: Sequence[Question],
    examples: Sequence[Question],
    *,
    floor: float = FLOOR,
    progress: Callable[[str], None] | None = None,
) -> Score:
    """Ask every question after the worked examples. Raises InputError where the server takes no text."""
    if server.target.info().get("skip_tokenizer_init"):
        raise InputError(f"{server.url} skips its tokenizer: GSM8K needs one, and real weights")
    shown = "".join(f"Question: {each.question}\nAnswer: {each.answer}\n\n" for each in examples)
    right = 0
    for number, each in enumerate(questions):
        if progress is not None:
            progress(f"question {number + 1} of {len(questions)}, {right} right")
        text = server.text(f"{shown}Question: {each.question}\nAnswer:", MAX_TOKENS, _STOP)
        right += last_number(text) == each.result
    return Score(right, len(questions), floor)


def last_number(text: str) -> Decimal | None:
    """The last number in a text, commas left out."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
