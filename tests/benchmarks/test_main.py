"""What `python -m benchmarks` takes."""

from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, OPTIONAL, main


def test_a_name_that_is_none_is_refused_before_anything_is_measured(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["rl_files", "rl_fils"])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out and told.err.endswith("no benchmark 'rl_fils'; did you mean 'rl_files'?\n")


def test_help_names_every_benchmark_and_each_is_a_module(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert not ended.value.code
    named = {*BENCHMARKS, *OPTIONAL}
    assert all(name in shown for name in named)
    modules = Path(__file__).parents[2].glob("benchmarks/*.py")
    assert named == {path.stem for path in modules if "\ndef measure() " in path.read_text()}
