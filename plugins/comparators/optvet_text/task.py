"""What a declared task says: whether a model writes a text, or answers questions."""

from __future__ import annotations

import re

_WRITES = re.compile(
    r"text.generation|text2text|language.model|\bcausal|translat(ion|or)\b|summari[sz]ation"
    r"|dialogue?|conversational|\bgpt\b|\bllm\b"
)
WRITES = r"^(?!.*(mask|fill)).*(language.model|text.generation|\bcausal)"
"""Tasks whose scores per token, which a catalogue suggests to compare, are there to write with."""
_FILLS = re.compile(r"mask|fill|\bbert\b|classif|embedding|speech|image|token.level")
_ANSWERS = re.compile(r"(question.answering|\bq&a\b|\bqa\b|\bsquad\b)")
_NO_SPANS = re.compile(r"visual|table|document|generative")


def writes_text(task: str | None) -> bool:
    """Whether a model with this task continues a text token by token."""
    words = (task or "").lower()
    return bool(_WRITES.search(words)) and not _FILLS.search(words)


def answers_questions(task: str | None) -> bool:
    """Whether a model with this task points at an answer in a context."""
    words = (task or "").lower()
    return bool(_ANSWERS.search(words)) and not _NO_SPANS.search(words)
