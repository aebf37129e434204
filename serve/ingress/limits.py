"""Bounds of requests, checked before anything is decoded; `GET /v1/limits` shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one request; what is beyond them is refused in one line."""

    picture_bytes: int = 32 << 20
    """Of a picture's file, counted while it is read."""
    pixels: int = 25_000_000
    """Of a picture, as its header says, and of the result. The command line's 400 million take 1.2 GB."""
    observations_bytes: int = 4 << 20
    """Of a request for actions."""
    observations: int = 256
    """Rows of one request; BCQ weighs a hundred candidates for each."""
    file_bytes: int = 8 << 20
    """Of a file that a task beside the papers' answers."""
    query_characters: int = 300
    hits: int = 50
    """Recordings that one query finds, at most."""
    recording_bytes: int = 64 << 20
    """Of a recording that is sent back in one answer; a range of a longer one may be asked for."""
    frames_bytes: int = 64 << 20
    """Of satellite images, as a file and as the arrays that come out of it."""
    held_bytes: int = 512 << 20
    """Of the bodies of all requests at once; more are told to come again."""
    body_seconds: float = 20.0
    """From a request's head to its body's last byte; a second more for each `body_rate` bytes."""
    body_rate: int = 64 << 10
    """Bytes a second at which a body is expected."""
    bodies: int = 2048
    """That are read at once; beyond, the one whose last byte is the oldest is given up."""
    client_requests: int = 32
    """Of one address at once, where it is not this machine's own; more are told to come again. 0: any number."""
    ready_seconds: float = 10.0
    """For which `/-/readyz` repeats that every model answers, and that it waits for their answers."""
    sound_bytes: int = 32 << 20
    """Of a recording that is sent to be found."""
    sound_seconds: float = 600.0
    """Of such a recording, as its header says."""
    sound_samples: int = 120_000_000
    """Of all its channels: ten minutes of stereo at 96 kHz."""
    seconds: float = 120.0
    """From the last byte of a request to its answer."""
    episode_steps: int = 1000
    """Of an episode that a policy plays; MuJoCo's tasks end theirs there."""
    episode_seconds: float = 60.0
    """That an episode may take; so fewer steps for a large policy."""
    episodes: int = 8
    """That are played or wait for that at once."""
    video_bytes: int = 128 << 20
    """Of a video. It travels as bytes: the ingress, Ray's object store and the replica each hold it for a moment."""
    video_frames: int = 1800
    """A minute at 30 frames a second."""
    video_pixels: int = 2_100_000
    """Of a frame, here and in the result: 1920 x 1088. The network takes 0.4 kB for each."""
    video_seconds: float = 120.0
    """That a video lasts, by its header."""
    job_seconds: float = 7200.0
    """That a video is painted, at most."""
    jobs_waiting: int = 4
    """Videos that wait while one is painted."""
    jobs_kept: int = 50
    """Finished ones; the oldest go."""
    job_hours: float = 24.0
    """After which a job and its files are gone."""


LIMITS = Limits()
