"""Change one operator or number of a module at a time and see whether its tests notice: `python -m tests.mutants`.

Run by hand: a mutant that survives is a line that no test holds, or one whose change means nothing (a tolerance, a
chunk's size). Files are not changed: a process forked for each mutant imports the changed module in place of the file.
"""

import ast
import atexit
import functools
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "audio/data": ["audio/test_data.py", "audio/test_captions.py", "audio/test_leaks.py"],
    "audio/losses": ["audio/test_losses.py"],
    "audio/metrics": ["audio/test_metrics.py"],
    "rl/data": ["rl/test_data.py", "rl/test_states.py", "rl/test_d4rl.py", "rl/test_ends.py"],
    "rl/losses": ["rl/test_learner.py"],
    "rl/metrics": ["rl/test_metrics.py", "rl/test_learning.py"],
    "rl/prune/prune": ["rl/test_prune.py", "rl/test_blind.py"],
    "rl/prune/validate": ["rl/test_sparse.py", "rl/test_tables.py"],
    "style/data": ["style/test_data.py", "style/test_streams.py"],
    "style/losses": ["style/test_losses.py"],
    "weather/data": ["weather/test_data.py", "weather/test_frames.py"],
    "weather/losses": ["weather/test_losses.py"],
    "weather/metrics": ["weather/test_metrics.py", "weather/test_verification.py"],
}
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SECONDS = 180
"""A mutant that takes longer has been noticed."""


def mutants(source):
    """Yield (line, what changes, the changed tree) for every operator, number and truth value outside annotations."""
    count = sum(1 for _ in sites(ast.parse(source)))
    for number in range(count):
        tree = ast.parse(source)
        node, change, text = [*sites(tree)][number]
        change()
        yield node.lineno, text, tree


def sites(tree):
    """Yield (node, a function that changes it, in words) for each place."""
    notes = {id(part) for node in ast.walk(tree) for name in ("annotation", "returns")
             if (note := getattr(node, name, None)) for part in ast.walk(note)}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in notes:
            continue
        if isinstance(node, ast.Compare):
            for number, operator in enumerate(node.ops):
                after = SWAPS[type(operator)]()
                change = functools.partial(node.ops.__setitem__, number, after)
                yield node, change, _words(operator, after)
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
            after = SWAPS[type(node.op)]()
            yield node, lambda node=node, after=after: setattr(node, "op", after), _words(node.op, after)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            after = ast.UnaryOp(node.op, node.operand)  # twice is not at all
            yield (
                node,
                lambda node=node, after=after: setattr(node, "operand", after),
                f"without {type(node.op).__name__}",
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            after = not node.value if isinstance(node.value, bool) else node.value + 1
            yield node, lambda node=node, after=after: setattr(node, "value", after), f"{node.value} -> {after}"


def _words(before, after):
    return f"{type(before).__name__} -> {type(after).__name__}"


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a tree in place of its file."""

    def __init__(self, name, path, tree):
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self, origin=str(self.path)) if name == self.name else None

    def exec_module(self, module):
        module.__file__ = str(self.path)
        exec(compile(ast.fix_missing_locations(self.tree), str(self.path), "exec"), module.__dict__)


def passes(name, path, tree, tests):
    """Return whether the tests pass with this tree, in a process of their own."""
    pid = os.fork()
    if not pid:
        import pytest

        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.meta_path.insert(0, Mutated(name, path, tree))
        code = pytest.main(["-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", *tests])
        atexit._run_exitfuncs()  # of the tests' own, such as their home folder
        os._exit(int(code))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def main(names, most):
    """Print each mutant that survives, and how many of a module's were noticed."""
    import numpy  # noqa: F401  # once, for all the processes that are forked
    import torch  # noqa: F401

    for name in names or TESTS:
        path = ROOT / f"tasks/{name}.py"
        module = f"retable.tasks.{name.replace('/', '.')}"
        tests = [str(ROOT / "tests" / test) for test in TESTS[name]]
        source = path.read_text()
        if not passes(module, path, ast.parse(source), tests):
            sys.exit(f"{name}: its tests fail as it is, or take more than {SECONDS} s")
        every = [*mutants(source)]
        chosen = random.Random(0).sample(every, min(most, len(every)))
        noticed = 0
        for line, text, tree in sorted(chosen, key=lambda mutant: mutant[:2]):
            if passes(module, path, tree, tests):
                print(f"    tasks/{name}.py:{line}: {text}", flush=True)
            else:
                noticed += 1
        print(f"{name}: {noticed} of {len(chosen)} noticed (of {len(every)})", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 20
    main(arguments, count)
