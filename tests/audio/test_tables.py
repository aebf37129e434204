"""The tables against the paper's, and what each scale makes of them."""

import csv
import functools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing

from retable.platform.config import fingerprint, flatten, override, parent
from retable.platform.report.write import pictures
from retable.platform.spec.space import find_space
from retable.platform.spec.table import Combined, Replicate, Row, expand
from retable.platform.spec.task import config_at, scaled
from retable.tasks.audio import TASK, claims, example, tables
from retable.tasks.audio.config import PAPER, Cnn14, Config, Passt, Untrained, View
from retable.tasks.audio.encoders.audio_encoder import build_audio
from retable.tasks.audio.learner import cost
from retable.tasks.audio.tables import AUDIO, COLUMNS, SYSTEMS, TEXT
from tests.table_results import results_of

TABLES = TASK.tables()
MEMBERS = tuple(row.label for row in tables.MEMBERS)
CANDIDATES = tuple(row.label for row in tables.CANDIDATES)
SCALES = TASK.scales()

SPACES = ("audio", "audio_text", "audio_augmentation", "audio_learning_rate")


@functools.cache
def needs(name, scale):
    """Return label -> needs of the rows that are trained."""
    table = scaled(TABLES[name], SCALES[scale])
    rows = [row for row in table.rows if isinstance(row, Row) and not row.absent]
    return {row.label: expand(table, row, Config(), View()) for row in rows if row.overrides is not None}


def trainings(scale, names=tuple(TABLES)):
    """Return fingerprint -> config of all runs, ancestors included."""
    found = {}
    for name in names:
        for need in (need for row in needs(name, scale).values() for need in row):
            config = need.config
            while config is not None:
                found[fingerprint("audio", 1, config)] = config
                config = parent(config)
    return found


@pytest.fixture(scope="module")
def published(request):
    shared = request.getfixturevalue("shared")
    with open(shared / "papers/tables/audio_table2.csv") as file:
        return list(csv.DictReader(file))


def test_published_values_are_the_papers(published):
    headers = {"mAP@10": "mAP10", "R@1": "R1", "R@5": "R5", "R@10": "R10"}
    lines = [{ours: float(line[theirs]) for ours, theirs in headers.items() if line[theirs]} for line in published]
    rows = [dict(row.published) for row in TABLES["table2"].rows if row.published]
    assert len(rows) == 16 and sorted(map(str, rows)) == sorted(map(str, lines))
    assert [column.header for column in COLUMNS] == list(headers)


def test_a_row_trains_what_the_papers_line_says(published):
    rows = needs("table2", "paper")
    by_score = {row.published.get("mAP@10"): row.label for row in TABLES["table2"].rows}
    lines = [line for line in published if line["audio"].startswith("PaSST")]
    assert len(lines) == 12
    for line in lines:
        config = rows[by_score[float(line["mAP10"])]][0].config
        assert config.audio.weights == line["audio"].lower()
        assert config.segment == float(line["segment_s"])
        assert config.text.name.removesuffix("-uncased") == line["text"]
        assert (parent(config) is not None) == (line["finetune"] == "1")
        assert config.augmentation == (0.3 if line["gpt"] == "1" else 0.0)
        assert (config.audio.stride == 16) == (line["audio"] == "PaSST-N")
        assert {path: flatten(config)[path] for path in PAPER} == PAPER


def test_rows_of_other_authors_have_the_papers_encoders(published):
    rows = needs("table2", "paper")
    lines = {line["id"]: line for line in published if line["id"].startswith("B")}
    for name, row in (("B1", tables.BASELINE), ("B2", tables.WAVCAPS)):
        config, line = rows[row.label][0].config, lines[name]
        assert isinstance(config.audio, Cnn14) and line["audio"] == "CNN14" and config.audio.weights == "cnn14"
        assert config.segment == config.clip_seconds == float(line["segment_s"])
        assert config.text.name.split("/")[-1].removesuffix("-uncased") == line["text"]
        assert (parent(config) is not None) == (line["finetune"] == "1") and config.augmentation == 0
        build_audio(replace(config, audio=replace(config.audio, weights="random", filters=2)), None)
    assert rows[tables.BASELINE.label][0].config.text.frozen
    left = [row for row in TABLES["table2"].rows if isinstance(row, Row) and row.overrides is None]
    assert [row.published["mAP@10"] for row in left] == [float(lines["B3"]["mAP10"])]
    assert left[0].label == "best submission of 2022 (ensemble)" and "best submission of 2022" in TABLES["table2"].note


def test_the_ensemble_joins_the_papers_eight(published):
    by_score = {row.published.get("mAP@10"): row.label for row in TABLES["table2"].rows}
    eight = [by_score[float(line["mAP10"])] for line in published if line["id"].isdigit()]
    assert tuple(eight) == MEMBERS
    ensemble, chance = [row for row in TABLES["table2"].rows if isinstance(row, Combined)]
    assert ensemble.of == MEMBERS and chance is tables.CHANCE
    assert {*CANDIDATES, *MEMBERS, tables.MEAN_MEL.label} == set(needs("ensembles", "paper"))


@pytest.mark.parametrize("scale", SCALES)
def test_fine_tuning_starts_from_the_same_encoders_and_seed(scale):
    stages = {
        "corpora",
        "learning_rate",
        "epochs",
        "steps",
        "patience",
        "augmentation",
        "init",
        "init.overrides",
        "init.checkpoint",
    }
    for label, found in needs("table2", scale).items():
        for need in found:
            ancestor = parent(need.config)
            if label in (tables.NOT_FINE_TUNED.label, tables.BASELINE.label):
                assert ancestor is None
                assert len(need.config.corpora) == (1 if label == tables.BASELINE.label else 3)
                continue
            assert parent(ancestor) is None and len(ancestor.corpora) == 3 and ancestor.augmentation == 0
            theirs = label == tables.WAVCAPS.label
            assert need.config.corpora == ("clotho",)
            slower = need.config.learning_rate < ancestor.learning_rate
            assert slower or (theirs and scale == "paper") or scale == "quick"  # which learns in fine-tuning
            child, other = flatten(need.config), flatten(ancestor)
            differing = {path for path in other if child[path] != other[path]}
            assert differing <= (stages | {"warmup"} if theirs else stages)


def test_fine_tuning_starts_from_the_best_epoch_of_a_whole_pre_training():
    others = (tables.BASELINE.label, tables.WAVCAPS.label)
    for found in (found for label, found in needs("table2", "paper").items() if label not in others):
        for need in found:
            ancestor = parent(need.config) or need.config
            assert (ancestor.epochs, ancestor.patience) == (15, 15)
            assert TASK.early_stop(ancestor) == ("validation_map10", 15), "no run of 15 epochs waits so long"
            assert parent(need.config) is None or (need.config.patience, need.config.init.checkpoint) == (0, 0)


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_shared_and_differ_where_rows_do(scale):
    table2 = needs("table2", scale)
    prints = [fingerprint("audio", 1, need.config) for found in table2.values() for need in found]
    assert len(set(prints)) == len(prints)
    assert trainings(scale, ["ensembles"]).keys() | trainings(scale, ["figure2"]).keys() <= trainings(scale).keys()
    assert trainings(scale, ["table2"]).keys() == trainings(scale).keys()
    best, plain = (needs("figure2", scale).get(row.label) for row in (tables.CLOTHO_GPT, tables.CLOTHO))
    assert best and [need.config for need in best] == [need.config for need in table2[tables.BEST.label]]
    assert bool(plain) == (scale != "quick")
    assert not plain or [parent(need.config) for need in plain] == [
        need.config for need in table2[tables.NOT_FINE_TUNED.label]
    ]


def test_smoke_trains_every_row_once():
    systems, fine_tuned_alone, guarded, linear, baseline, wavcaps = 2 * 10, 1, 2, 4, 1, 2
    assert len(trainings("smoke")) == systems + fine_tuned_alone + guarded + linear + baseline + wavcaps
    for name, table in TABLES.items():
        assert all(not row.absent for row in scaled(table, SCALES["smoke"]).rows)
        assert needs(name, "smoke").keys() == needs(name, "paper").keys()


@pytest.mark.parametrize("scale", ["smoke", "quick", "small"])
def test_a_reduced_row_keeps_what_is_compared(scale):
    full = needs("table2", "paper")
    for label, found in needs("table2", scale).items():
        big, small = full[label][0].config, found[0].config
        assert (small.leaks, small.corpora, small.augmentation) == (big.leaks, big.corpora, big.augmentation)
        assert small.segment == big.segment / 10 and isinstance(small.text, Untrained)
        assert type(small.audio) is type(big.audio)
        assert small.text.family == ("roberta" if "roberta" in big.text.name else "bert")
        if isinstance(big.audio, Passt):
            assert small.audio.stride == big.audio.stride and small.audio.weights == "random"
            assert small.audio.patchout_frequency == (big.audio.patchout_frequency if scale == "smoke" else 0)
    rows = needs("table2", scale)
    for large, base in claims.LARGER:
        if large.label in rows and base.label in rows:
            assert rows[large.label][0].config.text.width > rows[base.label][0].config.text.width


@pytest.mark.parametrize(("scale", "minutes"), [("smoke", 4), ("quick", 2.5), ("small", 180)])
def test_reduced_scales_are_as_short_as_they_say(scale, minutes):
    assert sum(cost(config) for config in trainings(scale).values()) / 2 < 60 * minutes


def test_combined_rows_join_what_is_run():
    quick, small = (scaled(TABLES["ensembles"], SCALES[scale]) for scale in ("quick", "small"))
    pair = next(row for row in quick.rows if row.label == tables.ENSEMBLE.label)
    assert isinstance(pair, Combined) and not pair.absent and len(pair.of) == 2
    assert f"The ensemble joins 2 of its 8 members: {', '.join(pair.of)}." in quick.note
    run = {row.label for row in small.rows if isinstance(row, Row) and not row.absent}
    combined = {row.label: row for row in small.rows if isinstance(row, Combined) and not row.absent}
    members = set(MEMBERS)
    assert members <= run and set(combined[tables.ENSEMBLE.label].of) == members and len(members) == 8
    assert {label for label in combined if "without" in label} == {tables.WITHOUT[label].label for label in members}
    for label in members:
        assert set(combined[tables.WITHOUT[label].label].of) == members - {label}
    extra = {tables.ADDED[label].label: label for label in CANDIDATES if label in run}
    assert {label: set(combined[label].of) - members for label in extra} == {k: {v} for k, v in extra.items()}


def test_small_repeats_what_claims_compare_and_says_what_it_leaves_out():
    found = {label: len(rows) for label, rows in needs("table2", "small").items()}
    assert found.pop(tables.GUARDED.label) == 1 and set(found.values()) == {3}
    table = scaled(TABLES["table2"], SCALES["small"])
    assert not any(row.absent for row in table.rows)
    assert f"With one seed: {tables.GUARDED.label}." in table.note
    assert "the baseline's sentence encoder" not in scaled(TABLES["ensembles"], SCALES["small"]).note
    assert "the baseline's sentence encoder" not in scaled(TABLES["table2"], SCALES["quick"]).note
    quick = scaled(TABLES["table2"], SCALES["quick"])
    left_out = [row.label for row in quick.rows if row.absent]
    assert left_out and all(label in quick.note.split("Not at this scale")[1] for label in left_out)
    assert scaled(TABLES["table1"], SCALES["small"]).note == TABLES["table1"].note


def test_labels_say_which_encoders_a_system_has():
    assert [row.label for row in SYSTEMS] == [f"{a} + {t}" for a in list(AUDIO)[:2] for t in TEXT] + [
        "PaSST-S15 + bert-large",
        "PaSST-S15 + roberta-large",
    ]


@pytest.mark.parametrize("scale", SCALES)
def test_train_starts_from_a_system_of_that_size(scale):
    config = config_at(TASK, scale, {})
    assert parent(config) is None and config.leaks == "exclude"
    best = needs("table2", scale)[tables.NOT_FINE_TUNED.label][0].config
    assert (config.audio, config.text, config.segment) == (best.audio, best.text, best.segment)
    assert (config.data, config.epochs, config.steps) == (best.data, best.epochs, best.steps)


@pytest.mark.parametrize("name", SPACES)
def test_sweeps_choose_on_the_validation_recordings(name):
    space = find_space(name)
    assert override(View(), space.view).split == "validation" and space.metric == "map10"


def tuned(label, seed, losses):
    history = [{"epoch": epoch, "validation_loss": loss} for epoch, loss in enumerate(losses, start=1)]
    return Replicate(label, {"seed": seed}, Config(seed=seed), None, metrics={}, history=history)


def test_figure_2_shows_means_and_ranges():
    curves = np.array([[2.0, 1.5], [2.4, 1.2], [2.2, 1.8]])
    rows = {
        tables.CLOTHO.label: [tuned(tables.CLOTHO.label, seed, curve) for seed, curve in enumerate(curves)],
        tables.CLOTHO_GPT.label: [],
        tables.MEAN_MEL.label: [tuned(tables.MEAN_MEL.label, 0, curves[0])],  # the gate of the claims: not drawn
    }
    drawing = TABLES["figure2"].draw(results_of(TABLES, rows))
    assert isinstance(drawing, Drawing)
    ((line, _, (bars,)),) = [container.lines for container in drawing.axes[0].containers]
    np.testing.assert_allclose(line.get_ydata(), curves.mean(axis=0))
    np.testing.assert_allclose(line.get_xdata(), [1, 2])
    ranges = [segment[:, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(ranges, np.stack([curves.min(axis=0), curves.max(axis=0)], axis=1))
    assert drawing.axes[0].get_legend().get_texts()[0].get_text() == "ClothoV2, 3 runs"


def test_table_1_shows_both_authors_sentences():
    drawing = example.draw_example(results_of(TABLES, {}))
    texts = [text.get_text().replace("\n    ", " ") for text in drawing.texts]
    for sentence in (*example.ANSWER, *example.rewritten()):
        assert any(text.endswith(sentence) for text in texts)
    red = [text.get_text() for text in drawing.texts if text.get_color() == "#d0442f"]
    assert len(red) == sum(map(example.names_keyword, (*example.ANSWER, *example.rewritten())))
    assert pictures(lambda: example.draw_example(results_of(TABLES, {}))).keys() == {"png", "svg", "dark.png"}


@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_the_note_says_that_the_baselines_untrained_sentence_encoder_is_trained(scale):
    """Frozen with random weights, it would tell captions apart by chance alone."""
    table = scaled(TABLES["table2"], SCALES[scale])
    (row,) = (row for row in table.rows if row.label == tables.BASELINE.label)
    config = expand(table, row, Config(), View())[0].config
    assert isinstance(config.text, Untrained), "which has no field for either"
    assert "its sentence encoder frozen" in TABLES["table2"].note
    assert (
        "At this scale the baseline's sentence encoder starts untrained: it is trained, not frozen, and its class "
        "token stands for a caption, not the mean over the tokens."
    ) in table.note
