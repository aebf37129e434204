"""Thirty kinds of sound, synthesised: what they sound like at each trait, and how a scene of them is mixed.

Each kind follows the physics that makes it audible as such: a bell's partials are inharmonic and decay, a siren's pitch
moves, rain is broadband, crickets are amplitude-modulated tones at 4 to 5 kHz. Within a kind, every event differs: the
parameters vary around those of its traits. All arrays are float32 at 32 kHz.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retable.platform.spec.arrays import Array
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.world.scenes import Event, Scene

PITCH = {"low": 0.55, "high": 1.8}
"""Factors of the fundamental frequency."""
RATE = {"slow": 0.5, "fast": 2.0}
"""Factors of the tempo."""
COUNT = {"once": 1, "twice": 2, "three": 3, "many": 5}
LEVEL = {"quiet": -12.0, "loud": 8.0}
"""Decibels above an event that nobody calls loud or quiet."""
FAR = -5.0
"""Decibels of a far event, besides its dullness and echo."""
BACKGROUND = -10.0
"""Decibels of the background below the foreground."""
REVERBERATION = {"far": 0.5, "hall": 1.2}
"""Seconds in which an echo falls by 60 dB."""


def noise(
    rng: np.random.Generator, samples: int, low: float = 20.0, high: float = 15000.0, slope: float = 0.0
) -> Array:
    """Return noise between two frequencies in Hz with soft edges, RMS 1; `slope`: power law of its amplitudes."""
    size = 1 << max(samples - 1, 1).bit_length()
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)[1:]
    shape = np.sqrt(1 / (1 + (low / frequencies) ** 8) / (1 + (frequencies / high) ** 8)) * frequencies**slope
    spectrum = np.zeros(size // 2 + 1, np.complex64)
    spectrum[1:] = rng.standard_normal((len(shape), 2), np.float32).view(np.complex64)[:, 0] * shape
    wave = np.fft.irfft(spectrum, size)[:samples].astype(np.float32)
    return wave / max(float(np.sqrt(np.mean(wave**2))), 1e-9)


def tone(samples: int, frequency: float | Array, partials: Sequence[float] = (1.0,)) -> Array:
    """Return harmonics of a frequency in Hz, constant or one for each sample; those above 15 kHz are left out."""
    line = np.broadcast_to(np.asarray(frequency, np.float64), samples)
    phase = (2 * np.pi / SAMPLE_RATE * np.cumsum(line)) % (2 * np.pi)
    turn = np.exp(1j * phase).astype(np.complex64)
    top = float(line.max()) if samples else 0.0
    wave, power = np.zeros(samples, np.float32), np.ones(1, np.complex64)
    for number, amplitude in enumerate(partials, 1):
        power = power * turn
        if amplitude and number * top < 15000:
            wave += np.float32(amplitude) * power.imag
    return wave


def clock(samples: int) -> Array:
    """Return the time of each sample in seconds."""
    return np.arange(samples, dtype=np.float32) / SAMPLE_RATE


def decay(samples: int, seconds: float) -> Array:
    """Return an envelope that rises in 2 ms and falls by a factor e in each so many seconds."""
    time = clock(samples)
    return np.minimum(time / 0.002, 1) * np.exp(-time / seconds)


def swing(rng: np.random.Generator, samples: int, rate: float) -> Array:
    """Return a slow oscillation between 0 and 1, `rate` times a second, from a random phase."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * (rate * clock(samples) + rng.random()))).astype(np.float32)


def place(samples: int, times: Array, shapes: Sequence[Array], gains: Array) -> Array:
    """Put shapes, one after another, at times in seconds; what reaches over the end is cut."""
    wave = np.zeros(samples, np.float32)
    for number, (time, gain) in enumerate(zip(times, gains, strict=True)):
        start = int(time * SAMPLE_RATE)
        shape = shapes[number % len(shapes)][: max(0, samples - start)]
        wave[start : start + len(shape)] += gain * shape
    return wave


def beats(rng: np.random.Generator, samples: int, rate: float, jitter: float) -> Array:
    """Return the times in seconds of `rate` beats a second, each off by a share `jitter` of the interval."""
    times = (np.arange(max(1, int(samples / SAMPLE_RATE * rate))) + 0.1) / rate
    return np.clip(times + jitter / rate * rng.uniform(-1, 1, len(times)), 0, max(samples / SAMPLE_RATE - 0.01, 0))


def steps(rng: np.random.Generator, samples: int, rate: float, jitter: float, shapes: Sequence[Array]) -> Array:
    """Repeat shapes at beats, each a little louder or softer."""
    times = beats(rng, samples, rate, jitter)
    return place(samples, times, shapes, rng.uniform(0.6, 1, len(times)))


def burst(rng: np.random.Generator, seconds: float, low: float, high: float, fall: float) -> Array:
    """Return a burst of noise that decays."""
    samples = int(seconds * SAMPLE_RATE)
    return noise(rng, samples, low, high) * decay(samples, fall)


def glide(samples: int, start: float, end: float) -> Array:
    """Return frequencies that go from one to another in equal musical steps."""
    return np.geomspace(start, end, max(samples, 1))[:samples]


# Sounds that are counted: one strike of them.


def beep(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A pure tone of about 1 kHz with its third harmonic."""
    return tone(samples, 1000 * pitch, (1, 0, 0.2)) * (clock(samples) < 0.7 * samples / SAMPLE_RATE)


def bell(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """The partials of a church bell: hum, prime, tierce, quint, nominal, and two above; the higher, the shorter."""
    ratios, gains = (0.5, 1.0, 1.19, 1.5, 2.0, 2.51, 3.0), (0.4, 0.6, 0.6, 0.4, 1.0, 0.5, 0.4)
    strike = sum(
        gain * tone(samples, 620 * pitch * ratio * rng.uniform(0.995, 1.005)) * decay(samples, 0.6 / ratio)
        for ratio, gain in zip(ratios, gains, strict=True)
    )
    return np.asarray(strike)


def bark(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A harmonic voice that falls, half of it noise, 0.2 s."""
    length = min(samples, int(0.22 * SAMPLE_RATE))
    voice = tone(length, glide(length, 620 * pitch, 380 * pitch), (1, 0.9, 0.7, 0.5, 0.3, 0.2))
    wave = voice + 0.6 * noise(rng, length, 500 * pitch, 3000 * pitch)
    return np.asarray(wave * np.sin(np.pi * np.linspace(0, 1, length) ** 0.6))


def frog(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A buzzing voice: pulses at 45 Hz of a resonance near 500 Hz, 0.35 s."""
    length = min(samples, int(0.35 * SAMPLE_RATE))
    gate = (0.5 + 0.5 * np.sin(2 * np.pi * 45 * clock(length))) ** 4
    return np.asarray(tone(length, 500 * pitch, (1, 0.6, 0.4, 0.2)) * gate)


def knock(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A thump on wood: resonances near 180 and 430 Hz and a click."""
    length = min(samples, int(0.2 * SAMPLE_RATE))
    body = tone(length, 180.0) * decay(length, 0.04) + 0.7 * tone(length, 430.0) * decay(length, 0.025)
    return np.asarray(body + 0.4 * noise(rng, length, 800, 4000) * decay(length, 0.008))


def glass(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A crash of noise, then shards: short high partials at random times."""
    length = min(samples, int(0.8 * SAMPLE_RATE))
    times = np.sort(rng.exponential(0.15, 14)) % max(0.9 * length / SAMPLE_RATE, 0.01)
    shards = [tone(2400, rng.uniform(2500, 9000)) * decay(2400, 0.02) for _ in range(7)]
    crash = noise(rng, length, 2500, 13000) * decay(length, 0.08)
    return crash + 0.9 * place(length, times, shards, rng.uniform(0.4, 1, 14))


def whistle(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A breathy tone that glides up and down around 1.6 kHz."""
    bend = 1 + 0.25 * np.sin(np.pi * np.linspace(0, 1.5, samples))
    wave = tone(samples, 1600 * pitch * bend) + 0.08 * noise(rng, samples, 1200 * pitch, 3000 * pitch)
    return np.asarray(wave * np.sin(np.pi * np.linspace(0, 1, samples)) ** 0.5)


def phone(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Two tones, 20 times a second on and off, for two thirds of the time."""
    ring = tone(samples, 950 * pitch, (1, 0, 0.4)) + tone(samples, 1400 * pitch, (1, 0, 0.3))
    gate = (np.sin(2 * np.pi * 20 * clock(samples)) > 0) * (clock(samples) < 0.66 * samples / SAMPLE_RATE)
    return np.asarray(ring * gate)


def horn(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Two notes a major third apart, with many harmonics."""
    partials = [1 / number**0.7 for number in range(1, 12)]
    wave = tone(samples, 350 * pitch, partials) + tone(samples, 440 * pitch, partials)
    return np.asarray(wave * (clock(samples) < 0.7 * samples / SAMPLE_RATE))


def squeak(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A harmonic voice that glides up from 700 Hz and trembles."""
    length = min(samples, int(0.5 * SAMPLE_RATE))
    line = glide(length, 700 * pitch, 1300 * pitch) * (1 + 0.04 * np.sin(2 * np.pi * 35 * clock(length)))
    return np.asarray(tone(length, line, (1, 0.7, 0.6, 0.5, 0.3)) * np.sin(np.pi * np.linspace(0, 1, length)))


def thunder(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A crack, then a rumble below 150 Hz that rolls and dies."""
    rumble = noise(rng, samples, 25, 150, -0.5) * (0.4 + swing(rng, samples, 2.5)) * decay(samples, 0.6)
    return 1.5 * rumble + 0.5 * noise(rng, samples, 100, 3000, -0.5) * decay(samples, 0.1)


# Sounds that go on.


def siren(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A tone that sweeps between 550 and 1300 Hz, 0.8 times a second."""
    line = 550 * pitch * (1300 / 550) ** swing(rng, samples, 0.8 * rate)
    return tone(samples, line, (1, 0.4, 0.3, 0.1))


def bird(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Short whistles that sweep between 2.5 and 5 kHz."""
    lengths = [int(seconds * SAMPLE_RATE) for seconds in rng.uniform(0.05, 0.12, 4)]
    ends = rng.uniform(2500, 4500, (4, 2)) * pitch**0.5
    notes = [
        tone(length, glide(length, *pair)) * np.sin(np.pi * np.linspace(0, 1, length))
        for length, pair in zip(lengths, ends, strict=True)
    ]
    return steps(rng, samples, 4.5 * rate, 0.25, notes)


def cricket(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A tone near 4.5 kHz in pulses at 28 Hz, in chirps 2.5 times a second."""
    pulses = swing(rng, samples, 28) ** 2 * (swing(rng, samples, 2.5 * rate) > 0.45)
    return np.asarray(tone(samples, rng.uniform(4200, 4900)) * pulses)


def engine(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Harmonics of 70 Hz that waver, with a little low noise."""
    line = 70 * pitch * (1 + 0.03 * np.sin(2 * np.pi * 0.7 * clock(samples)))
    return tone(samples, line, [1 / number**0.8 for number in range(1, 18)]) + 0.3 * noise(rng, samples, 50, 500)


def helicopter(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Thumps of noise below 400 Hz, 11 a second, over the hiss of the turbine."""
    pulses = swing(rng, samples, 11 * rate) ** 3
    return np.asarray(noise(rng, samples, 40, 400) * pulses + 0.08 * noise(rng, samples, 2000, 6000))


def chainsaw(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Harsh harmonics of 110 Hz that rev up and down, with broad noise."""
    line = 110 * pitch * (1 + 0.35 * swing(rng, samples, 0.6))
    return np.asarray(np.tanh(2 * tone(samples, line, [1] * 30)) + 0.5 * noise(rng, samples, 1000, 9000))


def rain(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Broadband noise and drops at random times."""
    times = np.sort(rng.random(int(60 * samples / SAMPLE_RATE) + 1)) * samples / SAMPLE_RATE * 0.99
    drops = [tone(480, rng.uniform(1500, 6000)) * decay(480, 0.003) for _ in range(8)]
    return 0.6 * noise(rng, samples, 600, 12000) + place(samples, times, drops, rng.uniform(0.2, 1.5, len(times)))


def wind(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Low noise that swells, with a band that whistles in the gusts."""
    gusts = swing(rng, samples, 0.5) ** 2
    return np.asarray(noise(rng, samples, 60, 500, -0.5) * (0.3 + gusts) + 0.3 * gusts * noise(rng, samples, 600, 900))


def waves(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Pink noise that surges about every two seconds; nature's waves are slower."""
    return np.asarray(noise(rng, samples, 80, 6000, -0.5) * (0.05 + swing(rng, samples, 0.55 * rate) ** 3))


def fire(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Sparse snaps of very different strength over a faint roar."""
    times = np.sort(rng.random(int(14 * samples / SAMPLE_RATE) + 1)) * samples / SAMPLE_RATE * 0.99
    snaps = [burst(rng, 0.02, 1000, 10000, 0.003) for _ in range(5)]
    return 0.08 * noise(rng, samples, 40, 300) + place(samples, times, snaps, rng.exponential(0.6, len(times)))


def footsteps(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Heel and toe on a hard floor, two steps a second."""
    heels = [burst(rng, 0.12, 150, 1800, 0.015) for _ in range(3)]
    return steps(rng, samples, 2 * rate, 0.06, heels) + 0.3 * steps(rng, samples, 2 * rate, 0.1, heels[::-1])


def ticking(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Very short resonant clicks at equal intervals, two pitches in turn."""
    ticks = [tone(960, frequency) * decay(960, 0.004) for frequency in (2600.0, 2100.0)]
    return steps(rng, samples, 3 * rate, 0.0, ticks)


def drum(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """A membrane near 90 Hz whose pitch falls, two and a half beats a second."""
    length = int(0.35 * SAMPLE_RATE)
    beat = tone(length, glide(length, 130 * pitch, 85 * pitch), (1, 0.3)) * decay(length, 0.12)
    return steps(rng, samples, 2.5 * rate, 0.02, [beat + 0.1 * noise(rng, length, 200, 2000) * decay(length, 0.01)])


def drip(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Bubbles: tones that rise from 900 Hz while they decay, two a second."""
    length = int(0.1 * SAMPLE_RATE)
    drops = [tone(length, glide(length, f, 1.9 * f)) * decay(length, 0.025) for f in rng.uniform(800, 1100, 3)]
    return steps(rng, samples, 2.2 * rate, 0.15, drops)


def static(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """White noise with sudden drops."""
    holes = 1 - 0.7 * (swing(rng, samples, 3.3) > 0.93)
    return np.asarray(noise(rng, samples, 100, 15000) * holes)


def crowd(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Five voices: gliding harmonics that come and go at the pace of syllables, and breath."""
    wave = 0.3 * noise(rng, samples, 300, 3000, -0.5)
    for _ in range(5):
        base = rng.uniform(100, 240) * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 2) * clock(samples)))
        partials = np.exp(-(((np.arange(1, 9) - rng.uniform(2, 6)) / 2) ** 2))
        wave += 0.5 * tone(samples, base, partials.tolist()) * swing(rng, samples, rng.uniform(2.5, 5)) ** 2
    return wave


def keyboard(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Dull clicks at uneven times, seven a second."""
    return steps(rng, samples, 7 * rate, 0.45, [burst(rng, 0.05, 1200, 5500, 0.006) for _ in range(5)])


def saw(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Noise around 2 kHz that swells back and forth, the push brighter than the pull."""
    stroke = swing(rng, samples, 1.6 * rate)
    push = noise(rng, samples, 1500, 5000) * np.maximum(2 * stroke - 1, 0)
    return np.asarray(push + 0.7 * noise(rng, samples, 800, 2500) * np.maximum(1 - 2 * stroke, 0))


def gravel(rng: np.random.Generator, samples: int, pitch: float, rate: float) -> Array:
    """Crunches: bursts of many grains, about two a second."""
    length = int(0.22 * SAMPLE_RATE)
    envelope = np.sin(np.pi * np.linspace(0, 1, length)) ** 2
    crunches = [
        noise(rng, length, 1000, 9000) * envelope * (rng.random(length // 64 + 1) < 0.4).repeat(64)[:length]
        for _ in range(3)
    ]
    return steps(rng, samples, 2 * rate, 0.08, crunches)


@dataclass(frozen=True)
class Sound:
    """A kind of sound."""

    make: Callable[[np.random.Generator, int, float, float], Array]
    """(rng, samples, pitch factor, rate factor) -> at most so many samples; of a counted sound, one strike."""
    traits: tuple[str, ...] = ()
    """Those of pitch, rate and count that it may have. All have loudness and distance, the uncounted a trend."""
    ambient: bool = False
    """Whether it may be the background of a scene."""

    @property
    def counted(self) -> bool:
        """Whether it comes in strikes that can be counted."""
        return "count" in self.traits


SOUNDS: dict[str, Sound] = {
    "beep": Sound(beep, ("pitch", "count")),
    "siren": Sound(siren, ("pitch", "rate")),
    "bell": Sound(bell, ("pitch", "count")),
    "dog": Sound(bark, ("pitch", "count")),
    "bird": Sound(bird, ("rate",), ambient=True),
    "cricket": Sound(cricket, ("rate",), ambient=True),
    "frog": Sound(frog, ("pitch", "count")),
    "engine": Sound(engine, ("pitch",), ambient=True),
    "helicopter": Sound(helicopter, ("rate",), ambient=True),
    "chainsaw": Sound(chainsaw, ("pitch",)),
    "rain": Sound(rain, ambient=True),
    "wind": Sound(wind, ambient=True),
    "waves": Sound(waves, ("rate",), ambient=True),
    "fire": Sound(fire, ambient=True),
    "footsteps": Sound(footsteps, ("rate",)),
    "clock": Sound(ticking, ("rate",), ambient=True),
    "knock": Sound(knock, ("count",)),
    "drum": Sound(drum, ("pitch", "rate")),
    "glass": Sound(glass, ("count",)),
    "drip": Sound(drip, ("rate",), ambient=True),
    "static": Sound(static, ambient=True),
    "whistle": Sound(whistle, ("pitch", "count")),
    "phone": Sound(phone, ("pitch", "count")),
    "horn": Sound(horn, ("pitch", "count")),
    "crowd": Sound(crowd, ambient=True),
    "keyboard": Sound(keyboard, ("rate",)),
    "saw": Sound(saw, ("rate",)),
    "squeak": Sound(squeak, ("pitch", "count")),
    "thunder": Sound(thunder, ("count",)),
    "gravel": Sound(gravel, ("rate",)),
}


def render_event(event: Event, rng: np.random.Generator) -> Array:
    """Return one event's waveform, `event.seconds` long, at the level of its loudness and distance."""
    sound, traits = SOUNDS[event.sound], event.traits
    samples = max(1, round(event.seconds * SAMPLE_RATE))
    pitch = PITCH.get(traits.get("pitch", ""), 1.0) * float(np.exp(0.07 * rng.standard_normal()))
    rate = RATE.get(traits.get("rate", ""), 1.0) * float(np.exp(0.07 * rng.standard_normal()))
    if sound.counted:
        count = COUNT[traits.get("count", "once")]
        interval = samples // count
        strikes = [sound.make(rng, interval, pitch, rate) for _ in range(min(count, 3))]
        times = np.arange(count) * interval / SAMPLE_RATE
        wave = place(samples, times, strikes, rng.uniform(0.85, 1, count))
    else:
        wave = sound.make(rng, samples, pitch, rate)
    return shape_event(wave, event, rng)


def shape_event(wave: Array, event: Event, rng: np.random.Generator) -> Array:
    """Bring any sound's waveform to an event's loudness, distance and trend, without clicks at its ends."""
    traits = event.traits
    if traits.get("distance") == "far":
        wave = reverberate(low_pass(wave, 1800.0), REVERBERATION["far"], 0.6, rng)
    if "trend" in traits:
        ramp = np.geomspace(0.06, 1, len(wave)).astype(np.float32)
        wave = wave * (ramp if traits["trend"] == "rising" else ramp[::-1])
    edge = min(len(wave) // 2, int(0.01 * SAMPLE_RATE))
    wave = wave.astype(np.float32)
    wave[:edge] *= np.linspace(0, 1, edge, dtype=np.float32)
    wave[len(wave) - edge :] *= np.linspace(1, 0, edge, dtype=np.float32)
    level = LEVEL.get(traits.get("loudness", ""), 0.0) + (FAR if traits.get("distance") == "far" else 0.0)
    return normalise(wave) * np.float32(10 ** ((level + BACKGROUND * event.background) / 20))


def normalise(wave: Array) -> Array:
    """Bring a waveform to RMS 0.08, or to a peak of 0.5 where it is but a few strikes."""
    loudness = max(float(np.sqrt(np.mean(wave**2))) / 0.08, float(np.abs(wave).max(initial=0)) / 0.5, 1e-6)
    return wave / np.float32(loudness)


def low_pass(wave: Array, edge: float) -> Array:
    """Weaken what is above a frequency in Hz by 12 dB an octave."""
    size = 1 << max(len(wave) - 1, 1).bit_length()
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    filtered: Array = np.fft.irfft(np.fft.rfft(wave, size) / (1 + (frequencies / edge) ** 2), size)
    return filtered[: len(wave)].astype(np.float32)


def reverberate(wave: Array, seconds: float, share: float, rng: np.random.Generator) -> Array:
    """Add the echo of a room, noise that falls by 60 dB in so many seconds, at a share of the sound's own energy."""
    length = int(seconds * SAMPLE_RATE)
    tail = rng.standard_normal(length, np.float32) * np.exp(-6.9 * np.linspace(0, 1, length, dtype=np.float32))
    size = 1 << (len(wave) + length).bit_length()
    echo = np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(tail, size), size)[: len(wave)].astype(np.float32)
    gain = share * float(np.linalg.norm(wave)) / max(float(np.linalg.norm(echo)), 1e-9)
    mixed: Array = wave + np.float32(gain) * echo
    return mixed


@dataclass(frozen=True)
class Recorder:
    """Recording device of a corpus: the audible part of the domain shift."""

    floor: float = -46.0
    """Level of the noise floor in dB, where full scale is 0; each recording is up to 6 dB off."""
    colour: float = 4.0
    """Standard deviation in dB of a recording's frequency response, which is smooth over the octaves."""
    edge: float = 16000.0
    """Highest frequency in Hz, as of a lossy codec."""
    room: float = 0.0
    """Share of an echo of half a second that every recording has."""


def mix(scene: Scene, waves: Sequence[Array], recorder: Recorder, rng: np.random.Generator) -> Array:
    """Mix the waveforms of a scene's events, in their room, as a recorder takes it down; the peak is at most 0.95."""
    samples = round(scene.seconds * SAMPLE_RATE)
    mixed = np.zeros(samples, np.float32)
    for event, wave in zip(scene.events, waves, strict=True):
        start = round(event.start * SAMPLE_RATE)
        mixed[start : start + len(wave)] += wave[: max(0, samples - start)]
    if scene.room == "hall":
        mixed = reverberate(mixed, REVERBERATION["hall"], 0.7, rng)
    elif scene.room == "outdoors":
        mixed += np.float32(0.012) * noise(rng, samples, 60, 1500, -0.5)
    if recorder.room:
        mixed = reverberate(mixed, 0.5, recorder.room, rng)
    mixed += np.float32(10 ** ((recorder.floor + rng.uniform(-6, 6)) / 20)) * noise(rng, samples)
    mixed = _colour(mixed, recorder, rng) * np.float32(10 ** (rng.uniform(-9, 0) / 20))
    return mixed * np.float32(min(1.0, 0.95 / max(float(np.abs(mixed).max(initial=0)), 1e-9)))


def _colour(wave: Array, recorder: Recorder, rng: np.random.Generator) -> Array:
    """Filter with a smooth random response (one draw an octave) and cut above the recorder's edge."""
    size = 1 << max(len(wave) - 1, 1).bit_length()
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    octaves = np.log2(np.maximum(frequencies, 31.25) / 31.25)
    gains = np.interp(octaves, np.arange(10), recorder.colour * rng.standard_normal(10)).astype(np.float32)
    response = 10 ** (gains / 20) / (1 + (frequencies / recorder.edge) ** 16)
    coloured: Array = np.fft.irfft(np.fft.rfft(wave, size) * response, size)
    return coloured[: len(wave)].astype(np.float32)


def render(scene: Scene, recorder: Recorder, rng: np.random.Generator) -> Array:
    """Synthesise a scene: float32 (samples,) at 32 kHz, within [-1, 1]."""
    return mix(scene, [render_event(event, rng) for event in scene.events], recorder, rng)
