"""Configs: how they change, what is refused, and the names of their runs."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retable.platform.config import (
    Parent,
    Scratch,
    Weights,
    added,
    choice_name,
    differences,
    fingerprint,
    flatten,
    override,
    override_lineage,
    parent,
    parse_set,
)
from retable.platform.errors import UserError
from retable.tasks.line.config import Config as Line
from retable.tasks.rl.config import Bc, Bcq, Dense, Erk, Grasp, Magnitude, Random, SmallDense, Snip
from retable.tasks.rl.config import Config as Rl


@dataclass(frozen=True, kw_only=True)
class Adam:
    rate: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True)
class PlainSgd:
    rate: float = 0.1
    momentum: float | None = None


@dataclass(frozen=True, kw_only=True)
class Inner:
    optimiser: Adam | PlainSgd = field(default_factory=lambda: Adam(rate=0.5))  # not Adam's own default
    depth: int = 2


@dataclass(frozen=True, kw_only=True)
class Whole:
    inner: Inner = field(default_factory=Inner)
    size: tuple[int, int] = (3, 4)
    mode: Literal["fast", "slow", 3] = "fast"
    name: str = "x"
    flag: bool = False
    ratio: float = 0.5
    limit: int | None = None
    anything: Any = None
    seed: int = 0
    epochs: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs {self.epochs} is below 1")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"seed": 3}, Whole(seed=3)),
        ({"ratio": 2}, Whole(ratio=2.0)),
        ({"size": [5, 6]}, Whole(size=(5, 6))),
        ({"mode": "slow"}, Whole(mode="slow")),
        ({"mode": 3}, Whole(mode=3)),
        ({"limit": 7}, Whole(limit=7)),
        ({"flag": True}, Whole(flag=True)),
        ({"inner.depth": 5}, Whole(inner=Inner(depth=5))),
        ({"inner.optimiser": "adam"}, Whole(inner=Inner(optimiser=Adam(rate=0.1)))),
        ({"inner.optimiser": "plain_sgd"}, Whole(inner=Inner(optimiser=PlainSgd()))),
        ({"inner.optimiser": PlainSgd(rate=3.0)}, Whole(inner=Inner(optimiser=PlainSgd(rate=3.0)))),
        ({"inner.optimiser.rate": 3}, Whole(inner=Inner(optimiser=Adam(rate=3.0)))),
        ({"inner.optimiser.betas": [0, 1]}, Whole(inner=Inner(optimiser=Adam(rate=0.5, betas=(0.0, 1.0))))),
    ],
)
def test_override_changes_what_a_path_names(changes, wanted):
    assert override(Whole(), changes) == wanted


@dataclass(frozen=True)
class Window:
    seconds: float = 1.0
    table: float = 1.0

    def __post_init__(self) -> None:
        int(self.seconds * 1e10)
        "abc"[int(self.table) :] + {1.0: "", 2.0: 2}[self.table]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"seconds": 1e308}, "seconds: cannot convert float infinity"), ({"table": 2.0}, "table: can")],
)
def test_a_config_that_cannot_compute_with_a_field_names_it(changes, said):
    with pytest.raises(UserError, match=f"^{said}"):
        override(Window(), changes)


def test_override_leaves_the_config_it_is_given_alone():
    before = Whole()
    override(before, {"inner.depth": 9, "seed": 4})
    assert before == Whole()


def test_whole_numbers_become_floats_also_inside_an_instance():
    assert type(override(Whole(), {"ratio": 1}).ratio) is float
    chosen = override(Whole(), {"inner.optimiser": PlainSgd(rate=3)})
    assert type(chosen.inner.optimiser.rate) is float
    assert fingerprint("t", 1, chosen) == fingerprint("t", 1, override(Whole(), flatten(chosen)))


def test_a_choice_is_made_before_its_fields_whatever_the_order():
    changes = {"inner.optimiser.momentum": 0.9, "seed": 1, "inner.optimiser": "plain_sgd", "inner.depth": 7}
    wanted = Whole(inner=Inner(optimiser=PlainSgd(momentum=0.9), depth=7), seed=1)
    orders = [dict(changes.items()), dict(reversed(changes.items())), dict(sorted(changes.items()))]
    assert [override(Whole(), order) for order in orders] == [wanted] * 3


def test_none_is_a_value_where_the_type_allows_it_and_only_there():
    assert override(Whole(limit=3), {"limit": None}).limit is None
    with pytest.raises(UserError, match="seed: None is not a whole number"):
        override(Whole(), {"seed": None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeed": 1}, "unknown field 'seeed'; did you mean 'seed'?"),
        ({"inner.dept": 1}, "unknown field 'inner.dept'; did you mean 'inner.depth'?"),
        ({"inner.optimiser.rat": 1}, "unknown field 'inner.optimiser.rat'; did you mean 'inner.optimiser.rate'?"),
        ({"seed.x": 1}, "unknown field 'seed.x': 'seed' has no fields of its own"),
        (
            {"inner.optimiser.momentum": 1.0},
            "inner.optimiser.momentum: choose inner.optimiser=plain_sgd first; it is now",
        ),
        ({"seed": True}, "seed: True is not a whole number"),
        ({"seed": 1.0}, "seed: 1.0 is not a whole number"),
        ({"seed": "1"}, "seed: '1' is not a whole number"),
        ({"ratio": False}, "ratio: False is not a number"),
        ({"ratio": float("nan")}, "ratio: nan is not a finite number"),
        ({"ratio": float("inf")}, "ratio: inf is not a finite number"),
        ({"ratio": 10**400}, "ratio: a whole number of 401 digits is too large"),
        ({"inner.optimiser.momentum": float("nan"), "inner.optimiser": "plain_sgd"}, "inner.optimiser.momentum: nan"),
        ({"inner.optimiser": PlainSgd(rate="much")}, "rate: 'much' is not a number"),
        ({"inner.optimiser": PlainSgd(rate=float("nan"))}, "rate: nan is not a finite number"),
        ({"flag": 1}, "flag: 1 is not true or false"),
        ({"name": 5}, "name: 5 is not text"),
        ({"mode": "slwo"}, "mode: 'slwo' is not one of fast, slow, 3; did you mean 'slow'?"),
        ({"mode": True}, "mode: True is not one of fast, slow, 3"),
        ({"size": [1, 2, 3]}, "size: [1, 2, 3] should hold 2 values"),
        ({"size": 3}, "size: 3 is not a list"),
        ({"size": [1, "a"]}, "size: 'a' is not a whole number"),
        ({"inner.optimiser": "adm"}, "inner.optimiser: 'adm' is not one of adam, plain_sgd; did you mean 'adam'?"),
        ({"inner.optimiser": Inner()}, "inner.optimiser: "),
        ({"limit": "many"}, "limit: 'many' is not one of a whole number, null"),
        ({"epochs": 0}, "epochs: epochs 0 is below 1"),
        ({"": 1}, "unknown field ''"),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_names_the_field(changes, message):
    with pytest.raises(UserError) as caught:
        override(Whole(), changes)
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text and len(text) < 300


sparsities = st.floats(0, 0.99)
prunes = st.one_of(
    st.just(Dense()),
    *(st.builds(kind, sparsity=sparsities) for kind in (Random, Magnitude, Erk, SmallDense)),
    *(st.builds(kind, sparsity=sparsities, batch=st.integers(2, 500)) for kind in (Snip, Grasp)),
)
algorithms = st.just(Bc()) | st.builds(Bcq, target_rate=st.floats(0, 1), target_samples=st.integers(1, 20))
pair = st.tuples(st.integers(1, 900), st.integers(1, 900))
rl_configs = st.builds(
    Rl,
    environment=st.text(max_size=5),
    algorithm=algorithms,
    prune=prunes,
    actor=pair,
    learning_rate=st.floats(1e-6, 1),
    seed=st.integers(0, 99),
)
lines = st.builds(
    Line,
    rate=st.floats(0, 1),
    seed=st.integers(0, 9),
    init=st.builds(Scratch)
    | st.builds(Weights, sha256=st.text("0123456789abcdef", max_size=4))
    | st.builds(
        Parent,
        overrides=st.lists(st.tuples(st.just("rate"), st.floats(0, 1)), max_size=1).map(tuple),
        checkpoint=st.integers(0, 3),
    ),
)
optimisers = st.builds(Adam, rate=st.sampled_from([0.1, 0.5])) | st.builds(
    PlainSgd, rate=st.sampled_from([0.1, 0.5]), momentum=st.none() | st.floats(0, 1)
)
wholes = st.builds(
    Whole,
    inner=st.builds(Inner, optimiser=optimisers),
    mode=st.sampled_from(["fast", "slow", 3]),
    limit=st.none() | st.integers(),
)
configs = st.one_of(rl_configs, lines, wholes)


@given(configs)
def test_flattened_fields_give_the_config_back_also_through_json(config):
    default = type(config)()
    assert override(default, flatten(config)) == config
    assert override(default, json.loads(json.dumps(flatten(config)))) == config


@given(st.one_of(st.tuples(*[kind] * 2) for kind in (rl_configs, lines, wholes)))
def test_differences_lead_from_any_config_to_any_other(pair):
    start, end = pair
    changes = differences(end, start)
    assert override(start, changes) == end
    for path in changes:  # none is superfluous, but those that belong to another
        rest = {other: value for other, value in changes.items() if other != path and not other.startswith(f"{path}.")}
        assert override(start, rest) != end


@given(st.one_of(st.tuples(*[kind] * 2) for kind in (rl_configs, lines.filter(lambda c: c.rate), wholes)))
def test_fingerprints_are_equal_where_configs_are(pair):
    first, second = pair
    if not isinstance(getattr(first, "init", None), Parent) and not isinstance(getattr(second, "init", None), Parent):
        assert (fingerprint("t", 1, first) == fingerprint("t", 1, second)) == (first == second)


def test_the_fingerprint_of_the_toy_is_the_one_that_names_its_runs_today():
    # A hash over this text. If it changes, no finished run of any task counts any longer.
    text = '["line",1,{"batch":8,"epochs":3,"init":"scratch","pause":0.0,"rate":0.1,"seed":0}]'
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "5c2d4376d3c57fe9"
    assert fingerprint("line", 1, Line()) == "5c2d4376d3c57fe9"


def test_the_fingerprint_is_the_same_in_a_process_that_hashes_otherwise():
    code = "from retable.platform.config import *; print(fingerprint('t', 1, Weights(sha256='ab')))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert found.stdout.strip() == fingerprint("t", 1, Weights(sha256="ab"))


def test_task_version_and_every_field_change_the_fingerprint():
    changes = {"rate": 0.2, "batch": 16, "epochs": 4, "pause": 0.1, "seed": 1, "init": Weights()}
    assert set(changes) == {field.name for field in dataclasses.fields(Line)}
    changed = [replace(Line(), **{name: value}) for name, value in changes.items()]
    changed += [Line(init=Weights(sha256="a")), Line(init=Parent()), Line(init=Parent(checkpoint=1))]
    names = [fingerprint("line", 1, config) for config in [Line(), *changed]]
    names += [fingerprint("line", 2, Line()), fingerprint("other", 1, Line())]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 1
    kind: str = added("plain")


@dataclass(frozen=True, kw_only=True)
class Grown:
    seed: int = 0
    inner: Part | Weights = field(default_factory=Part)
    extra: int = added(3)


def test_a_field_that_was_added_leaves_the_names_of_runs_that_do_without_it():
    text = '["t",1,{"inner":"part","inner.size":1,"seed":0}]'
    assert fingerprint("t", 1, Grown()) == hashlib.sha256(text.encode()).hexdigest()[:16]
    text = '["t",1,{"inner":"part","inner.kind":"odd","inner.size":1,"seed":0}]'
    odd = override(Grown(), {"inner.kind": "odd"})
    assert fingerprint("t", 1, odd) == hashlib.sha256(text.encode()).hexdigest()[:16]
    others = [fingerprint("t", 1, override(Grown(), {"extra": extra})) for extra in (1, 2, 3)]
    assert len(set(others)) == 3 and others[2] == fingerprint("t", 1, Grown())


def test_a_parent_enters_by_its_own_fingerprint_and_not_by_how_it_is_written():
    plain = Line(init=Parent(overrides=(("rate", 0.2), ("seed", 3))))
    same = [
        Line(init=Parent(overrides=(("seed", 3), ("rate", 0.2)))),
        Line(init=Parent(overrides=(("seed", 3), ("rate", 0.2), ("batch", 8)))),  # a default, spelled out
    ]
    other = [
        Line(init=Parent(overrides=(("rate", 0.2),))),
        Line(init=Parent(overrides=(("rate", 0.2), ("seed", 3)), checkpoint=2)),
        Line(),
    ]
    name = fingerprint("line", 1, plain)
    assert [fingerprint("line", 1, config) for config in same] == [name] * 2
    assert name not in [fingerprint("line", 1, config) for config in other]
    grandchild = Line(init=Parent(overrides=(("init", "parent"), ("init.overrides", (("rate", 0.2), ("seed", 3))))))
    assert parent(parent(grandchild)) == Line(rate=0.2, seed=3)
    assert fingerprint("line", 1, grandchild) not in (name, fingerprint("line", 1, Line(init=Parent())))


def test_only_a_run_with_a_parent_has_one():
    assert parent(Line()) is None and parent(Rl()) is None and parent(Line(init=Weights())) is None
    assert parent(Line(seed=5, init=Parent(overrides=(("rate", 0.2),)))) == Line(rate=0.2)


def test_a_change_of_the_lineage_reaches_every_ancestor():
    child = override(Line(), {"init": "parent", "init.overrides": [["init", "parent"], ["rate", 0.2]]})
    changed = override_lineage(child, {"seed": 7, "epochs": 2})
    assert (changed.seed, changed.epochs, changed.rate) == (7, 2, 0.1)
    assert (parent(changed).seed, parent(changed).epochs, parent(changed).rate) == (7, 2, 0.2)
    assert parent(parent(changed)) == Line(seed=7, epochs=2)


def test_what_a_run_starts_from_is_no_change_of_its_parent():
    changed = override_lineage(Line(), {"init": "parent", "init.checkpoint": 2, "seed": 3})
    assert changed.init.checkpoint == 2
    assert parent(changed) == Line(seed=3)


@dataclass(frozen=True, kw_only=True)
class Family:
    prune: Dense | Snip = field(default_factory=Dense)
    init: Scratch | Parent = field(default_factory=Scratch)
    seed: int = 0
    epochs: int = 1


def test_a_change_that_the_parent_has_no_field_for_stays_with_the_child():
    child = Family(prune=Snip(), init=Parent())
    changed = override_lineage(child, {"prune.sparsity": 0.5, "seed": 1})
    assert changed.prune == Snip(sparsity=0.5)
    assert parent(changed) == Family(seed=1)


def test_a_choice_and_its_fields_reach_the_parent_together():
    changed = override_lineage(Family(init=Parent()), {"prune.sparsity": 0.5, "prune": "snip"})
    assert changed.prune == Snip(sparsity=0.5)
    assert parent(changed) == Family(prune=Snip(sparsity=0.5))


def test_assignments_are_json_where_they_are_json_and_text_elsewhere():
    assignments = ["a=3", "b=3e-4", "c=[1, 2]", "d=true", "e=null", "f=word", 'g="7"', "h.i=x=y", " j =1", "k="]
    assert parse_set(assignments) == {
        "a": 3, "b": 3e-4, "c": [1, 2], "d": True, "e": None, "f": "word", "g": "7", "h.i": "x=y", "j": 1, "k": ""
    }  # fmt: skip
    with pytest.raises(UserError, match="--set seed: write it as path=value"):
        parse_set(["seed"])
    with pytest.raises(UserError, match="--set seed: two values are given; leave one out, or write a list, 'seed="):
        parse_set(["seed=0", "seed =1"])
    assert parse_set(["seed=0", "seed=0"]) == {"seed": 0}
    assert str(parse_set(["rate=NaN"])) == "{'rate': nan}", "one value, though it does not equal itself"


def test_configs_cannot_be_changed_in_place():
    for config in (Line(), Rl(), Snip(), Scratch()):
        name = dataclasses.fields(config)[0].name if dataclasses.fields(config) else "seed"
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, name, 1)


def test_a_choice_is_named_in_snake_case():
    assert [choice_name(kind) for kind in (SmallDense, Bcq, PlainSgd)] == ["small_dense", "bcq", "plain_sgd"]
    assert flatten(replace(Rl(), prune=SmallDense()))["prune"] == "small_dense"
