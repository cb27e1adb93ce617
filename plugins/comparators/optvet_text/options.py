"""Options of the comparator "text"."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Sensitive


class TextOptions(BaseModel):
    """How a text is continued, or an answer found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decode: Literal["greedy", "beam"] = "greedy"
    """Token by token, or the best of several beams."""
    choice: int = Field(default=1, ge=1)
    """Which token "greedy" takes at each step: the most probable, or the second, third, … best."""
    beams: int = Field(default=4, ge=1, le=64)
    """How many texts "beam" keeps."""
    length_penalty: float = Field(default=1.0, ge=0, le=10, allow_inf_nan=False)
    """The power of its length by which a beam's log-probability is divided; 0 for none."""
    max_tokens: int = Field(default=32, ge=1, le=4096)
    """New tokens at most."""
    min_tokens: int = Field(default=0, ge=0)
    """New tokens before which no token may end the text."""
    stop: int | str | tuple[int | str, ...] = ()
    """Tokens, and texts, that end a text; where it is empty, the ends that the vocabulary names."""
    context: int = Field(default=0, ge=0)
    """The longest sequence that the model takes; 0 for what model or vocabulary say. Prompts are
    cut to leave room for the new tokens, down to half of it.
    """
    vocabulary: Annotated[str, Sensitive("reads a file", reads_data=True)] = ""
    """A file from which tokens become text (tokenizer.json, a JSON list or object, lines); the one
    declared of the model, or tokenizer.json beside it, where it is empty. Else numbers are words.
    """
    output: str = ""
    """The output that has the scores; found where it is empty."""
    max_answer_tokens: int = Field(default=30, ge=1)
    """Longest answer to a question."""
    no_answer: bool = True
    """Whether a question may have no answer, as in SQuAD 2.0; the first token has its score."""
