"""The loss that pulls a recording and its captions together."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor


def contrastive(
    audio: Float[Tensor, "n dimension"],
    text: Float[Tensor, "n dimension"],
    positives: Bool[Tensor, "n n"],
    temperature: Float[Tensor, ""] | float,
) -> Float[Tensor, ""]:
    """Return NT-Xent of vectors of length one: cross-entropy over the recordings of each caption, and the other way.

    Every true cell of `positives` (caption, recording) counts alike, so that a recording that is drawn twice has both
    captions as its own.

    Source: section 2 of the paper, as its code computes it: cosines are divided by the temperature, of which the
    paper's formula says nothing, and all captions of a recording are positives, where the paper has the identity.
    """
    similarity = text @ audio.T / temperature
    over_recordings = similarity.log_softmax(1)[positives].mean()
    over_captions = similarity.log_softmax(0)[positives].mean()
    return -0.5 * (over_recordings + over_captions)


def same_recording(recording: Int[Tensor, " n"]) -> Bool[Tensor, "n n"]:
    """Return which pairs of rows show the same recording."""
    return recording[:, None] == recording[None, :]
