"""Captions as the numbers of their tokens, as the paper's code reads them."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

TEXT_STATE = "text._extra_state"
"""Name of the tensor with tokenizer and architecture of the text encoder."""
PUNCTUATION = str.maketrans("", "", string.punctuation)


def clean(caption: str) -> str:
    """Return a caption in lower case, without punctuation (ASCII's), as the paper's code reads it."""
    return caption.lower().translate(PUNCTUATION)


def tokens(tokenizer: Any, captions: Sequence[str], words: int) -> list[list[int]]:
    """Return the numbers of captions' tokens.

    Source: the paper's code. Captions are lower-cased, punctuation is deleted, class and end tokens are added, and then
    all is cut to `words` tokens: a caption that is too long loses its end token.
    """
    return [encoding.ids[:words] for encoding in tokenizer.encode_batch([clean(caption) for caption in captions])]


def read_tokenizer(content: Mapping[str, Any]) -> Any:
    """Return a tokenizer from its JSON."""
    from tokenizers import Tokenizer

    return unlimited(Tokenizer.from_str(json.dumps(content)))


def unlimited(tokenizer: Any) -> Any:
    """Let a tokenizer neither pad nor cut, and return it."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
