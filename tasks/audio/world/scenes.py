"""Scenes in symbols: their events, a caption's statements on them, and whether these hold elsewhere.

Both kinds of made recordings, synthesised (`generate`) and composed of real ones (`compose`), know their scene, so it
is known exactly of which other recordings a caption is true: the graded relevance that real data lack.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

OPPOSITE = {
    "low": "high",
    "high": "low",
    "slow": "fast",
    "fast": "slow",
    "quiet": "loud",
    "loud": "quiet",
    "near": "far",
    "far": "near",
    "rising": "fading",
    "fading": "rising",
    "once": "three",
    "twice": "many",
    "three": "once",
    "many": "twice",
}
"""Of each value of a trait, the one that a careless writer puts for it."""
TRAITS = {
    "pitch": ("low", "high"),
    "rate": ("slow", "fast"),
    "count": ("once", "twice", "three", "many"),
    "loudness": ("quiet", "loud"),
    "distance": ("near", "far"),
    "trend": ("rising", "fading"),
}
"""Values of each trait of an event. A trait that an event lacks is in the middle, and nobody speaks of it."""
ROOMS = ("dry", "hall", "outdoors")


@dataclass(frozen=True)
class Event:
    """One sound of a scene."""

    sound: str
    """A key of `captions.LEXICON`."""
    start: float
    """Seconds from the beginning of the recording."""
    seconds: float
    background: bool = False
    traits: Mapping[str, str] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it ends, in seconds from the beginning of the recording."""
        return self.start + self.seconds


@dataclass(frozen=True)
class Scene:
    """All that is heard in a recording, foreground events first, in the order of time."""

    events: tuple[Event, ...]
    seconds: float
    room: str = "dry"

    @property
    def sounds(self) -> frozenset[str]:
        """The classes of sound in it."""
        return frozenset(event.sound for event in self.events)


@dataclass(frozen=True)
class Claim:
    """Statement of a caption on one event."""

    sound: str
    background: bool = False
    traits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """All statements of a caption."""

    claims: tuple[Claim, ...]
    """Foreground claims first, in the order of time."""
    relations: tuple[str, ...] = ()
    """Between each foreground claim and the next: "then" or "while"."""
    room: str = ""
    """Empty where nothing is said of it."""


def draw(
    rng: np.random.Generator, seconds: float, traits: Mapping[str, Sequence[str]], ambient: Sequence[str], rooms: bool
) -> Scene:
    """Draw a scene: one to three sounds in the foreground, one after another or together; half have a background.

    No sound comes twice, so there are no more events than kinds of sound.

    Args:
        rng: chooses everything.
        seconds: length of the recording.
        traits: for each sound that may be heard, which traits it can have.
        ambient: the sounds that may be a background.
        rooms: whether the scene may be in a hall or outdoors.
    """
    count = min(1 + int(rng.choice(3, p=(0.25, 0.5, 0.25))), len(traits))
    names = [str(name) for name in rng.choice(sorted(traits), count, replace=False)]
    groups = [[names[0]]]
    for name in names[1:]:
        if rng.random() < 0.35:
            groups[-1].append(name)
        else:
            groups.append([name])
    slot = seconds / len(groups)
    foreground = [
        event for number, group in enumerate(groups) for event in _together(rng, group, number * slot, slot, traits)
    ]
    events = sorted(foreground, key=lambda event: event.start)
    free = [name for name in ambient if name not in names]
    if free and rng.random() < 0.5:
        name = str(rng.choice(free))
        events.append(Event(name, 0.0, seconds, True, _traits(rng, [t for t in traits[name] if t != "count"], seconds)))
    room = str(rng.choice(ROOMS, p=(0.7, 0.15, 0.15))) if rooms else "dry"
    return Scene(tuple(events), seconds, room)


def _together(
    rng: np.random.Generator, names: Sequence[str], start: float, slot: float, traits: Mapping[str, Sequence[str]]
) -> list[Event]:
    """Draw events that overlap within a slot of time."""
    events = []
    shares = (0.65, 0.85) if len(names) == 1 else (0.55, 0.7)  # those that start later must end within the slot
    for name in names:
        length = slot * rng.uniform(*shares)
        drawn = _traits(rng, traits[name], length)
        if "count" in drawn:  # strikes follow each other within seconds, however long the recording
            length = min(length, 0.5 + 0.5 * ("once", "twice", "three", "", "many").index(drawn["count"]))
        events.append(Event(name, 0.0, round(length, 3), False, drawn))
    shortest = min(event.seconds for event in events)
    first = start + rng.uniform(0, 0.05) * slot
    onsets = [first, *(first + rng.uniform(0.05, 0.3) * shortest for _ in events[1:])]
    return [replace(event, start=round(onset, 3)) for event, onset in zip(events, onsets, strict=True)]


def _traits(rng: np.random.Generator, possible: Sequence[str], seconds: float) -> dict[str, str]:
    """Draw an event's traits: a count always, of the others none in three of five cases."""
    drawn = {}
    for trait in possible:
        if trait == "count":
            room = 4 if seconds >= 1 else 3 if seconds >= 0.6 else 2
            drawn[trait] = str(rng.choice(TRAITS[trait][:room]))
        elif rng.random() < 0.4:
            drawn[trait] = str(rng.choice(TRAITS[trait]))
    return drawn


def reverse(scene: Scene) -> Scene:
    """Return the scene with its events in the opposite order: who hears only which sounds there are hears no change."""
    events = [e if e.background else replace(e, start=round(scene.seconds - e.end, 3)) for e in scene.events]
    return replace(scene, events=tuple(sorted(events, key=lambda event: (event.background, event.start))))


def opposite(scene: Scene) -> Scene:
    """Return the scene with every trait of its foreground turned into its opposite."""
    events = [
        e if e.background else replace(e, traits={trait: OPPOSITE[value] for trait, value in e.traits.items()})
        for e in scene.events
    ]
    return replace(scene, events=tuple(events))


def relation(first: Event, second: Event) -> str:
    """Return how two foreground events relate: "then" (the first ends before), "while" (they overlap) or ""."""
    if first.end <= second.start + 0.05:
        return "then"
    overlap = min(first.end, second.end) - max(first.start, second.start)
    return "while" if overlap > 0.25 * min(first.seconds, second.seconds) else ""


def facts_that_hold(statement: Statement, scene: Scene) -> tuple[int, int]:
    """Count the facts that a statement makes and those that hold in a scene, at the best choice of its events.

    A sound's presence in its part (foreground or background), each trait, each relation and the room are a fact each.
    """
    claims = statement.claims
    facts = len(claims) + sum(len(claim.traits) for claim in claims) + len(statement.relations) + bool(statement.room)
    candidates: list[list[Event | None]] = [
        [event for event in scene.events if (event.sound, event.background) == (claim.sound, claim.background)]
        or [None]
        for claim in claims
    ]
    best = 0
    for chosen in itertools.product(*candidates):
        taken = [id(event) for event in chosen if event]
        if len(set(taken)) < len(taken):
            continue
        held = sum(event is not None for event in chosen)
        for claim, event in zip(claims, chosen, strict=True):
            held += sum(event is not None and event.traits.get(k) == v for k, v in claim.traits.items())
        for stated, first, second in zip(statement.relations, chosen, chosen[1:], strict=False):
            held += first is not None and second is not None and relation(first, second) == stated
        best = max(best, held)
    return facts, best + bool(statement.room and statement.room == scene.room)


def holds(statement: Statement, scene: Scene) -> bool:
    """Whether everything that a statement says is true of a scene."""
    if not {claim.sound for claim in statement.claims} <= scene.sounds:
        return False
    facts, held = facts_that_hold(statement, scene)
    return facts == held


def relevance(statements: Sequence[Statement], owner: Sequence[int], scenes: Sequence[Scene]) -> npt.NDArray[np.bool_]:
    """Return of which recordings each caption is true (captions, recordings).

    Args:
        statements: what each caption states.
        owner: for each caption, the position of the recording that it was written for. That one always counts, also
            where the writer erred: no query is without an answer.
        scenes: of each recording.
    """
    relevant = np.zeros((len(statements), len(scenes)), bool)
    for row, (statement, own) in enumerate(zip(statements, owner, strict=True)):
        relevant[row] = [holds(statement, scene) for scene in scenes]
        relevant[row, own] = True
    return relevant


def to_json(scene: Scene, statements: Sequence[Statement]) -> str:
    """Write a recording's scene and what each of its captions states as the JSON of `Recording.facts`."""
    return json.dumps({"scene": asdict(scene), "statements": [asdict(s) for s in statements]}, separators=(",", ":"))


def from_json(text: str) -> tuple[Scene, list[Statement]]:
    """Read what `to_json` wrote."""
    facts = json.loads(text)
    scene = facts["scene"]
    statements = [
        Statement(tuple(Claim(**claim) for claim in s["claims"]), tuple(s["relations"]), s["room"])
        for s in facts["statements"]
    ]
    return Scene(tuple(Event(**event) for event in scene["events"]), scene["seconds"], scene["room"]), statements
