"""A grammar of captions: what a scene's hearer states, and the words for it.

Five writers share one lexicon and differ in form: plain ("a dog barks"), progressive ("a dog is barking"), nominal
("the barking of a dog"), passive ("a dog barking can be heard") and terse ("dog barking"); a sixth writes titles like
those of sound archives. Lengths and habits (8 to 20 words, omissions, errors) follow Clotho's captions; the words are
our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from retable.platform.train.seeds import pick
from retable.tasks.audio.rewrite import rewriter
from retable.tasks.audio.world.scenes import OPPOSITE, Claim, Event, Scene, Statement, relation


@dataclass(frozen=True)
class Words:
    """The words for one class of sound: any subject goes with any verb."""

    subjects: tuple[str, ...]
    verbs: tuple[str, ...]
    """In the infinitive; the first word is inflected."""
    tags: tuple[str, ...]
    """Keywords that an archive files the sound under; the first one is the class."""


def _words(subjects: str, verbs: str, tags: str) -> Words:
    """Split each list at its commas."""
    return Words(*(tuple(part.split(", ")) for part in (subjects, verbs, tags)))


LEXICON: dict[str, Words] = {
    "beep": _words(
        "an alarm, a beeper, an electronic device, a timer, a monitor, a digital watch",
        "beep, bleep, emit a tone, give a signal, go off",
        "beep, alarm, electronic",
    ),
    "siren": _words(
        "a siren, an ambulance, a police car, an emergency vehicle, a fire truck",
        "wail, sound its siren, blare, howl up and down, pass with its siren on",
        "siren, emergency, ambulance",
    ),
    "bell": _words(
        "a bell, a church bell, a metal bell, a chime, a gong",
        "ring, toll, chime, strike, clang",
        "bell, ring, metal",
    ),
    "dog": _words(
        "a dog, a hound, a puppy, a canine, an angry dog, a pet dog",
        "bark, yap, woof, yelp, bay",
        "dog, bark, animal",
    ),
    "bird": _words(
        "a bird, birds, a songbird, a sparrow, small birds, a finch",
        "chirp, sing, tweet, twitter, call",
        "bird, chirp, nature",
    ),
    "cricket": _words(
        "crickets, a cricket, insects, grasshoppers, cicadas",
        "chirp in the grass, trill, stridulate, buzz, sing at night",
        "crickets, insect, night",
    ),
    "frog": _words(
        "a frog, a toad, a bullfrog, a pond frog, an amphibian",
        "croak, ribbit, call from a pond, grunt, creak",
        "frog, croak, pond",
    ),
    "engine": _words(
        "an engine, a motor, a truck engine, a diesel motor, a car, a tractor",
        "idle, rumble, run, hum, drone",
        "engine, motor, vehicle",
    ),
    "helicopter": _words(
        "a helicopter, a chopper, an aircraft with rotors, rotor blades, a military helicopter",
        "fly over, hover, thump, whirl, chop through the air",
        "helicopter, aircraft, rotor",
    ),
    "chainsaw": _words(
        "a chainsaw, a power saw, a motor saw, a lumberjack's saw, a gas saw",
        "rev, buzz, cut through wood, growl, roar",
        "chainsaw, tool, forest",
    ),
    "rain": _words(
        "rain, raindrops, a rain shower, a downpour, rainfall, water from the sky",
        "fall, pour, patter, come down, splash on the ground",
        "rain, water, weather",
    ),
    "wind": _words(
        "wind, a strong breeze, a gust of wind, a gale, moving air",
        "blow, howl, whoosh, sweep through the trees, gust",
        "wind, weather, gust",
    ),
    "waves": _words(
        "waves, sea waves, the ocean, surf, breakers, the sea",
        "crash on the shore, roll in, wash over the beach, break, surge",
        "waves, sea, beach",
    ),
    "fire": _words(
        "a fire, a campfire, flames, burning wood, a bonfire, logs",
        "crackle, burn, spit sparks, blaze, sputter",
        "fire, crackle, burning",
    ),
    "footsteps": _words(
        "a person, someone, footsteps, a man in hard shoes, a woman in heels",
        "walk on a hard floor, step along, pace across a room, stroll down a corridor, tread on tiles",
        "footsteps, walk, floor",
    ),
    "clock": _words(
        "a clock, a wall clock, an old watch, a timepiece, a pendulum clock",
        "tick, go tick-tock, count the seconds, mark time, tick away",
        "clock, tick, time",
    ),
    "knock": _words(
        "a fist, a visitor, knuckles, a hand, a caller",
        "knock on a door, rap on wood, pound on the door, bang on a wooden door, thump against wood",
        "knock, door, wood",
    ),
    "drum": _words(
        "a drum, a bass drum, a tom, a drummer, a hand drum",
        "beat, play a rhythm, pound, keep a beat, boom",
        "drum, music, percussion",
    ),
    "glass": _words(
        "glass, a window, a bottle, a glass pane, a dish",
        "shatter, break, smash, burst into pieces, splinter",
        "glass, break, shatter",
    ),
    "drip": _words(
        "water, a tap, a leaking faucet, droplets, a leak",
        "drip, drip into a basin, plop, fall drop by drop, trickle into a sink",
        "drip, water, tap",
    ),
    "static": _words(
        "static, a radio, white noise, a television without signal, an untuned receiver",
        "hiss, crackle with noise, fizz, give off noise, sizzle",
        "static, noise, radio",
    ),
    "whistle": _words(
        "a whistle, a referee, a man, someone, a kettle",
        "whistle, blow a whistle, give a whistle, whistle a note, pipe",
        "whistle, tone, glide",
    ),
    "phone": _words(
        "a telephone, a phone, an old telephone, an office phone, a landline",
        "ring, warble, jingle, ring for an answer, call for attention",
        "phone, telephone, ring",
    ),
    "horn": _words(
        "a car horn, a horn, a driver, a truck horn, a ship",
        "honk, toot, sound a horn, blow a horn, hoot",
        "horn, traffic, honk",
    ),
    "crowd": _words(
        "a crowd, people, many voices, an audience, guests, a group of people",
        "talk, chatter, babble, murmur, converse",
        "crowd, people, voices",
    ),
    "keyboard": _words(
        "a keyboard, a typist, fingers, an office worker, a secretary",
        "type, tap on keys, click on a keyboard, write on a computer, clatter on keys",
        "keyboard, typing, computer",
    ),
    "saw": _words(
        "a hand saw, a saw, a carpenter, a worker, a woodworker",
        "saw wood, cut a plank, saw back and forth, scrape through a board, rasp through timber",
        "saw, wood, carpentry",
    ),
    "squeak": _words(
        "a hinge, a door, a rusty gate, an old chair, a wheel",
        "squeak, creak open, squeal, screech, groan on its hinges",
        "squeak, hinge, door",
    ),
    "thunder": _words(
        "thunder, a thunderstorm, a storm, a thunderclap, lightning",
        "rumble in the sky, roll, clap, crack, boom overhead",
        "thunder, storm, weather",
    ),
    "gravel": _words(
        "boots, a hiker, a walker, feet, shoes",
        "crunch on gravel, walk over gravel, step on small stones, march on a gravel path, trudge over pebbles",
        "gravel, footsteps, path",
    ),
    "rooster": _words(
        "a rooster, a cock, a cockerel, a farm bird, a male chicken",
        "crow, call at dawn, cry cock-a-doodle-doo, announce the morning, squawk",
        "rooster, farm, animal",
    ),
    "sneeze": _words(
        "a person, someone, a man, a woman with a cold, a sick person",
        "sneeze, let out a sneeze, give a sneeze, sneeze into a hand, achoo",
        "sneeze, human, cold",
    ),
    "baby": _words(
        "a baby, an infant, a newborn, a small child, a toddler",
        "cry, wail for its mother, sob, bawl, scream",
        "baby, cry, human",
    ),
}
"""The words for each class of sound. `sounds.SOUNDS` synthesises the first thirty; `compose` needs the rest."""

ADVERBS = {
    "low": ("at a low pitch", "in a deep tone", "low in pitch"),
    "high": ("at a high pitch", "in a shrill tone", "high in pitch"),
    "slow": ("slowly", "at a slow pace", "without hurry"),
    "fast": ("rapidly", "at a fast pace", "quickly"),
    "once": ("once", "a single time", "just once"),
    "twice": ("twice", "two times"),
    "three": ("three times", "thrice"),
    "many": ("several times", "repeatedly", "again and again", "many times"),
    "quiet": ("quietly", "softly", "faintly"),
    "loud": ("loudly", "noisily", "at full volume"),
    "near": ("close by", "nearby", "right next to the microphone"),
    "far": ("in the distance", "far away", "a long way off"),
    "rising": ("getting louder", "coming closer and closer", "growing in volume"),
    "fading": ("fading away", "getting quieter", "dying down"),
    "hall": ("in a large hall", "with a long echo", "in an echoing room"),
    "outdoors": ("outdoors", "in the open air", "outside"),
}
ADJECTIVES = {
    "low": ("deep", "low-pitched"),
    "high": ("shrill", "high-pitched"),
    "quiet": ("quiet", "soft", "faint"),
    "loud": ("loud", "noisy"),
    "far": ("distant", "faraway"),
}
CLAUSES = {
    "then": ("{a} and then {b}", "{a} before {b}", "after {a}, {b}", "{a}, and afterwards {b}"),
    "while": ("{a} while {b}", "{a} as {b}", "while {b}, {a}", "{a} and at the same time {b}"),
    "background": ("{a} while {b} in the background", "in the background {b} as {a}"),
}
"""Templates that join two clauses with a verb."""
PHRASES = {
    "then": ("{a} followed by {b}", "{a} and then {b}", "{b} preceded by {a}", "{a}, then {b}"),
    "while": ("{a} along with {b}", "{a} over {b}", "{a} together with {b}", "{a} during {b}"),
    "background": ("{a} with {b} in the background", "{a} against a backdrop of {b}"),
}
"""Templates that join two phrases without one."""
WRITERS = ("plain", "progressive", "nominal", "passive", "terse", "title")
FILLERS = ("in this recording", "for a while", "as time goes by", "as the recorder is running")
"""Words that state nothing, for captions that would be too short."""
ARCHIVE = ("field recording", "ambience", "sfx", "stereo", "loop", "take two", "handy recorder", "edited")
"""Words that an archive's titles hold and nobody hears."""
DOUBLED = frozenset("hum chop snap drip tap rap yap plop whir hit pat blab beg drum chug".split())
PLURAL = frozenset({"people", "feet"})


@dataclass(frozen=True)
class Habits:
    """Habits of a corpus' writers: probabilities."""

    background_omitted: float = 0.4
    event_omitted: float = 0.1
    """Of a foreground event besides the first one stated."""
    trait_omitted: float = 0.6
    room_omitted: float = 0.7
    wrong: float = 0.03
    """That a stated trait is the opposite of the truth."""
    typo: float = 0.03
    """That two letters of a caption are swapped."""


CLOTHO = Habits()
AUDIOCAPS = Habits(trait_omitted=0.75, room_omitted=0.95)
WAVCAPS = Habits(0.8, 0.4, 0.85, 0.95, wrong=0.06, typo=0.1)


def third_person(verb: str) -> str:
    """Inflect a verb's first word: bark, barks; crash on the shore, crashes on the shore."""
    first, blank, rest = verb.partition(" ")
    return rewriter.third_person(first) + blank + rest


def participle(verb: str) -> str:
    """Inflect a verb's first word: bark, barking; hum, humming; wave, waving."""
    first, _, rest = verb.partition(" ")
    if first.endswith("e") and not first.endswith("ee"):
        first = first[:-1]
    elif first in DOUBLED:
        first += first[-1]
    return f"{first}ing {rest}".rstrip()


def is_plural(subject: str) -> bool:
    """Whether a subject of the lexicon takes a plural verb."""
    bare = not subject.startswith(("a ", "an ", "the "))
    return subject in PLURAL or (bare and subject.endswith("s") and not subject.endswith("ss"))


def clause(subject: str, verb: str) -> str:
    """Return a subject of the lexicon with its verb: a dog, bark: a dog barks."""
    return f"{subject} {verb if is_plural(subject) else third_person(verb)}"


def state(scene: Scene, habits: Habits, rng: np.random.Generator) -> Statement:
    """Choose what a writer states of a scene: at least one foreground event; some traits may be wrong."""
    foreground = [event for event in scene.events if not event.background]
    always = int(rng.integers(len(foreground)))
    chosen = [e for number, e in enumerate(foreground) if number == always or rng.random() >= habits.event_omitted]
    background = [e for e in scene.events if e.background and rng.random() >= habits.background_omitted]
    claims = tuple(_claim(event, habits, rng) for event in chosen + background)
    relations = tuple(relation(first, second) for first, second in pairwise(chosen))
    room = scene.room if scene.room != "dry" and rng.random() >= habits.room_omitted else ""
    return Statement(claims, relations, room)


def caption(
    scene: Scene, writer: str, words: Mapping[str, Words], habits: Habits, rng: np.random.Generator, longest: int = 20
) -> tuple[str, Statement]:
    """Return a caption of a scene and what it states; traits, then events, are left out until it has few enough words.

    Args:
        scene: what is heard.
        writer: one of `WRITERS`.
        words: the lexicon.
        habits: what is omitted and mistaken, how often.
        rng: chooses.
        longest: number of words.
    """
    statement = state(scene, habits, rng)
    while True:
        text = write(statement, writer, words, habits, rng)
        if len(text.split()) <= longest:
            return text, statement
        statement = _shorten(statement)


def _shorten(statement: Statement) -> Statement:
    """Leave out the room, else a trait, else the last claim; what is stated of a single event without any is short."""
    claims = list(statement.claims)
    if statement.room:
        return replace(statement, room="")
    for number, claim in enumerate(claims):
        if claim.traits:
            claims[number] = replace(claim, traits=dict(list(claim.traits.items())[:-1]))
            return replace(statement, claims=tuple(claims))
    last = claims.pop()
    return Statement(tuple(claims), statement.relations if last.background else statement.relations[:-1])


def _claim(event: Event, habits: Habits, rng: np.random.Generator) -> Claim:
    traits = {}
    for trait, value in event.traits.items():
        if rng.random() >= habits.trait_omitted:
            traits[trait] = OPPOSITE[value] if rng.random() < habits.wrong else value
    return Claim(event.sound, event.background, traits)


def write(
    statement: Statement, writer: str, words: Mapping[str, Words], habits: Habits, rng: np.random.Generator
) -> str:
    """Return a caption that states exactly what `statement` does, in a writer's form.

    Args:
        statement: what to say.
        writer: one of `WRITERS`.
        words: the lexicon, or a part of it.
        habits: for the typing errors.
        rng: chooses among words and forms.
    """
    finite = writer in ("plain", "progressive")
    joints = CLAUSES if finite else PHRASES
    pieces = [_piece(claim, writer, words[claim.sound], rng) for claim in statement.claims]
    front = [piece for piece, claim in zip(pieces, statement.claims, strict=True) if not claim.background]
    text = front[0]
    for link, piece in zip(statement.relations, front[1:], strict=True):
        text = pick(joints[link], rng).format(a=text, b=piece)
    if len(front) < len(pieces):
        text = pick(joints["background"], rng).format(a=text, b=" and ".join(pieces[len(front) :]))
    if statement.room:
        text += f" {pick(ADVERBS[statement.room], rng)}"
    if writer == "passive":
        text += " can be heard"
    if writer == "title":
        text += f", {pick(ARCHIVE, rng)}" if rng.random() < 0.5 else ""
    else:
        for index in rng.permutation(len(FILLERS)):
            text += f" {FILLERS[index]}" if len(text.split()) < 8 else ""
    text = _mistype(text, rng) if rng.random() < habits.typo else text
    return text[0].upper() + text[1:] + ("" if writer in ("terse", "title") else ".")


def _piece(claim: Claim, writer: str, words: Words, rng: np.random.Generator) -> str:
    """Word one claim: subject, verb and what is stated of them, in the writer's form."""
    subject, verb = pick(words.subjects, rng), pick(words.verbs, rng)
    plural = is_plural(subject)
    adjective, adverbs = "", list[str]()
    for value in claim.traits.values():
        if value in ADJECTIVES and not adjective and rng.random() < 0.4:
            adjective = pick(ADJECTIVES[value], rng)
        else:
            adverbs.append(pick(ADVERBS[value], rng))
    subject = _describe(subject, adjective)
    if writer == "plain":
        text = f"{subject} {verb if plural else third_person(verb)}"
    elif writer == "progressive":
        text = f"{subject} {'are' if plural else 'is'} {participle(verb)}"
    elif writer == "nominal" and " " not in verb:
        text = f"the {participle(verb)} of {subject}"
    elif writer in ("terse", "title"):
        text = f"{_bare(subject)} {participle(verb)}"
    else:
        text = f"{subject} {participle(verb)}"
    return " ".join([text, *adverbs])


def _bare(subject: str) -> str:
    """Return a subject without its article."""
    article, _, rest = subject.partition(" ")
    return rest if article in ("a", "an", "the") else subject


def _describe(subject: str, adjective: str) -> str:
    """Put an adjective, which begins with a consonant, behind the article."""
    if not adjective:
        return subject
    if subject == "someone":
        return f"a {adjective} person"
    article = subject.partition(" ")[0]
    described = f"{adjective} {_bare(subject)}"
    return f"{article.removesuffix('n')} {described}" if article in ("a", "an", "the") else described


def _mistype(text: str, rng: np.random.Generator) -> str:
    """Swap two neighbouring letters inside one word."""
    words = text.split(" ")
    long = [number for number, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
    if long:
        number = pick(long, rng)
        word, position = words[number], int(rng.integers(1, len(words[number]) - 2))
        words[number] = word[:position] + word[position + 1] + word[position] + word[position + 2 :]
    return " ".join(words)


def keywords(scene: Scene, rng: np.random.Generator, noise: float = 0.15) -> str:
    """Return keywords as Clotho's metadata hold them: tags of every sound, said or not, and some of none."""
    tags = [tag for event in scene.events for tag in LEXICON[event.sound].tags[: int(rng.integers(1, 4))]]
    strangers = [words.tags[0] for words in LEXICON.values()]
    tags = [pick(strangers, rng) if rng.random() < noise else tag for tag in tags]
    return ";".join(dict.fromkeys(tags))
