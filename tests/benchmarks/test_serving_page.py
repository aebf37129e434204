"""docs/serving.md: its tables and figures are those of the committed results, rounded as printed."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()
TEXT = " ".join(PAGE.split())
WORDS = {"no": 0, "twice": 2, "four": 4, "five": 5, "eight": 8, "ten": 10}


def result(name):
    return json.loads((ROOT / f"benchmarks/results/serve_{name}.json").read_text())["result"]


def check(printed, value):
    """Assert that a number is a value, rounded to the digits that are printed."""
    text = printed.replace(",", "")
    digits = len(text.partition(".")[2])
    assert f"{value:.{digits}f}" == (f"0{text}" if text[0] == "." else text), f"{printed} is printed for {value}"


def said(pattern):
    """Return the numbers of the one sentence that has this pattern; words for small ones are numbers too."""
    (found,) = re.findall(pattern, TEXT)
    groups = [found] if isinstance(found, str) else found
    return [str(WORDS.get(each.lower(), each)) for each in groups]


def rows(pattern):
    return re.findall(rf"^\| {pattern} \|$", PAGE, re.MULTILINE)


def test_the_table_of_speed_is_that_of_serve_load():
    found, load = rows(r"(\w+), [^|]+ \| (\S+) \| (\S+), (\S+), (\S+) ms \| (\S+)/s \| (\S+)"), result("load")
    assert [row[0] for row in found] == ["rl", "audio", "style", "weather"]
    names = ("batched_per_s", "half_load_p50_ms", "half_load_p95_ms", "half_load_p99_ms", "alone_per_s", "batching")
    for task, *printed in found:
        for text, name in zip(printed, names, strict=True):
            check(text, load[f"{task}/{name}"])


def test_the_table_of_crowds_is_that_of_serve_crowd():
    found, crowd = rows(r"(\d+)( beside [^|]+|) \| (\d+) \| (\S+), (\S+), (\S+) s \| (\d+)"), result("crowd")
    keys = [f"{'slow_bodies/' if beside else ''}{clients}" for clients, beside, *_ in found]
    assert keys == ["64", "256", "600", "16", "slow_bodies/16"]
    for key, (_, _, rate, p50, p95, p99, refused) in zip(keys, found, strict=True):
        check(rate, crowd[f"{key}/per_s"])
        check(refused, crowd[f"{key}/refused"])
        for text, name in ((p50, "p50_ms"), (p95, "p95_ms"), (p99, "p99_ms")):
            check(text, crowd[f"{key}/{name}"] / 1000)
    assert min(crowd["256/per_s"], crowd["600/per_s"]) >= crowd["64/per_s"], "as many as 64 get"
    (slowest,) = said(r"although answers took up to ([\d.]+) s:")
    check(slowest, max(value for name, value in crowd.items() if name.endswith("p99_ms")) / 1000)
    assert "All of the thousand bodies were dropped (408)" in TEXT and crowd["slow_bodies/16/given_up_408"] == 1000


def test_what_is_said_of_killed_processes_is_that_of_serve_chaos():
    chaos = result("chaos")
    minutes, requests, kinds, killed = said(
        r"In (\w+) minutes, 16 clients sent ([\d,]+) requests of all (\w+) kinds, and (\d+) processes"
    )
    check(minutes, chaos["seconds"] / 60)
    check(requests, chaos["requests"])
    assert sum(value for name, value in chaos.items() if name.endswith("/answered")) == chaos["requests"]
    check(kinds, sum(name.endswith("/answered") for name in chaos))
    check(killed, sum(value for name, value in chaos.items() if name.startswith("killed/")))
    ingress, proxy, controller = said(r"the ingress (\w+) times, the proxy (\w+) times, the controller (\w+)\)")
    check(ingress, chaos["killed/ingress"])
    check(proxy, chaos["killed/ProxyActor"])
    check(controller, chaos["killed/ServeController"])
    lost, longest, growth = said(r"(No) request was lost, the longest took (\d+) s, and memory grew by (\d+) %")
    check(lost, sum(value for name, value in chaos.items() if name.endswith("/lost")))
    check(longest, chaos["longest_s"])
    check(growth, 100 * chaos["memory_growth"])


def test_what_is_said_of_generated_requests_is_that_of_serve_fuzz():
    fuzz = result("fuzz")
    (minutes,) = said(r"requests to every endpoint for (\w+) minutes")
    requests, files = said(r"Schemathesis sent ([\d,]+) requests, followed by ([\d,]+) broken files")
    check(minutes, fuzz["minutes"])
    check(requests, fuzz["generated"])
    check(files, fuzz["broken_files"])
    assert "There was no 5xx and no response that `/openapi.json` does not allow" in TEXT and fuzz["faults"] == 0
    assert not any(name.startswith("status_5") for name in fuzz)


@pytest.mark.parametrize(
    ("pattern", "file", "name", "unit"),
    [
        (r"All four tasks from the zoo take ([\d.]+) GB in all", "load", "memory_mb", 1000),
        (r"The server was open after (\d+) s on two idle cores", "load", "start_s", 1),
        (r"(\w+) queries in one forward pass are answered [\d.]+ times", "", 8, 1),
        (r"queries in one forward pass are answered ([\d.]+) times as fast", "load", "audio/model_gain", 1),
        (r"An answer of rl takes (\d+) ms", "load", "rl/http_ms", 1),
        (r"although the policy takes ([\d.]+):", "load", "rl/in_process_ms", 1),
        (r"same two deployments takes (\d+) ms", "load", "serve_alone/http_ms", 1),
        (r"deployments takes \d+ ms \((\d+) answers/s\)", "load", "serve_alone/per_s", 1),
        (r"After ([\d,]+) requests of each kind", "growth", "requests_of_each", 1),
        (r"the replica of style took ([\d.]+) GB", "growth", "style/memory_mb", 1000),
        (r"GB, of rl ([\d.]+), of", "growth", "rl/memory_mb", 1000),
        (r", of weather ([\d.]+) and", "growth", "weather/memory_mb", 1000),
        (r"and of audio ([\d.]+) \(timm", "growth", "audio/memory_mb", 1000),
    ],
)
def test_a_figure_of_the_text_is_that_of_a_result(pattern, file, name, unit):
    (printed,) = said(pattern)
    check(printed, result(file)[name] / unit if file else name)


def test_no_replica_grew_by_more_than_is_said():
    (most,) = said(r"none had grown by more than ([\d.]+) %")
    check(most, 100 * max(value for name, value in result("growth").items() if name.endswith("/growth")))
