"""Hearers who err in nothing: the similarities that a system which knows all of a generated world could give."""

import numpy as np

from retable.tasks.audio.world.generate import _symbols
from retable.tasks.audio.world.scenes import facts_that_hold


def tag_similarity(statements, scenes):
    """Return the cosine of the set of stated sounds and that of sounds there (captions, recordings).

    The ceiling of a system that knows every sound and nothing of traits, order and background.
    """
    names = sorted(set().union(*(scene.sounds for scene in scenes)))
    there = np.array([[name in scene.sounds for name in names] for scene in scenes], float)
    stated = np.array([[name in {claim.sound for claim in s.claims} for name in names] for s in statements], float)
    lengths = np.sqrt(np.outer(stated.sum(1), there.sum(1)))
    return stated @ there.T / np.maximum(lengths, 1)


def fact_similarity(statements, scenes):
    """Return the share of stated facts that hold, less a little for events left unsaid (captions, recordings).

    The ceiling: who knows scene and statement exactly can do no better than this, but for facts that captions omit.
    """
    found = np.zeros((len(statements), len(scenes)))
    for row, statement in enumerate(statements):
        sounds = {claim.sound for claim in statement.claims}
        for column, scene in enumerate(scenes):
            if sounds & scene.sounds:
                facts, held = facts_that_hold(statement, scene)
                found[row, column] = held / facts - 0.01 * max(0, len(scene.events) - len(statement.claims))
    return found


def oracle_similarity(recordings, knows):
    """Return the similarities (captions, recordings) by `tags`, which sounds there are, or by `facts`, all of them."""
    statements, _, heard = _symbols(recordings)
    return (tag_similarity if knows == "tags" else fact_similarity)(statements, heard)
