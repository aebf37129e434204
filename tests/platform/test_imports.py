"""Which way imports flow, and that no folder of ours hides a module of Python's."""

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("platform", "tasks", "search_spaces", "serve")
PLAIN = ("model", "learner", "metrics", "losses", "prune")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TOYS = sorted((ROOT / "tests" / "extra_tasks").rglob("*.py"))


@functools.cache
def words(path):
    """Return the dotted names that a file imports, and those it reads below a name that it imported."""
    tree = ast.parse(path.read_text())
    package = ["retable", *path.relative_to(ROOT).parent.parts]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(dotted(node))
    return names - {""}


def dotted(node):
    """Return `a.b.c` of a chain of attributes; nothing where it begins with something else than a name."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return before and f"{before}.{node.attr}"


def within(name, *packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offences(paths, wrong):
    return [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in sorted(words(path)) if wrong(path, name)]


def place(path):
    return path.relative_to(ROOT).parts


def test_the_files_are_found():
    found = {(parts[0], parts[-1]) for parts in map(place, FILES)}
    assert {("platform", "loop.py"), ("tasks", "learner.py"), ("search_spaces", "rl.py")} <= found
    assert len(FILES) > 30 and len(TOYS) >= 4


def test_imports_of_every_form_are_seen():
    folder = ROOT / "tests" / "platform"
    code = "import a.b as c\nfrom d import e\nfrom . import f\nfrom ..g import h\nx.y.z()\n"

    class Text(type(folder)):
        def read_text(self):
            return code

    seen = words(Text(folder / "x.py"))
    wanted = {"a.b", "d.e", "retable.tests.platform.f", "retable.tests.g.h", "x.y", "x.y.z"}
    assert seen == wanted


def test_the_platform_knows_no_task():
    # `import retable.tasks` alone is how it looks for the folders that are there
    wrong = offences(
        [path for path in FILES if place(path)[0] == "platform"],
        lambda path, name: (
            name.startswith(("retable.tasks.", "retable.search_spaces.", "retable.serve."))
            and not name.endswith(".__path__")
        ),
    )
    assert wrong == []


def test_a_task_knows_neither_its_neighbours_nor_what_stands_above_it():
    def wrong(path, name):
        other = within(name, "retable.tasks") and not within(name, f"retable.tasks.{place(path)[1]}")
        return other or within(name, "retable.search_spaces", "retable.serve")

    assert offences([path for path in FILES if place(path)[0] == "tasks"], wrong) == []


def test_ours_is_always_imported_as_retable():
    def wrong(path, name):
        return within(name, "tasks", "search_spaces", "serve") and name.split(".")[0] in imported(path)

    def imported(path):
        tree = ast.parse(path.read_text())
        plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        froms = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        return {name.split(".")[0] for name in [*plain, *froms]}

    def platform_module(path, name):
        first = ROOT / "platform" / name.split(".")[1] if name.startswith("platform.") else ROOT / "none"
        return first.with_suffix(".py").exists() or first.is_dir()

    paths = [*FILES, *TOYS]
    assert offences(paths, wrong) == [] and offences(paths, platform_module) == []


def test_only_the_platform_touches_the_machinery_of_training():
    def wrong(path, name):
        tune = within(name, "ray.tune") and place(path)[0] != "search_spaces"  # a space is made of Tune's domains
        return tune or within(name, "ray.train", "ray.air", "torch.distributed")

    assert offences([path for path in FILES if place(path)[0] != "platform"], wrong) == []
    users = {place(path)[-1] for path in FILES if any(within(n, "ray.train", "ray.tune") for n in words(path))}
    assert {"trials.py", "sweep.py"} <= users  # the test sees them where they are allowed


def plain_modules():
    found = [path for path in FILES if place(path)[0] == "tasks" and path.stem in PLAIN]
    return found + [path for path in TOYS if path.stem in PLAIN]


def test_what_trains_imports_no_ray():
    assert {"learner.py", "model.py", "metrics.py"} <= {path.name for path in plain_modules()}
    assert offences(plain_modules(), lambda path, name: within(name, "ray")) == []


def test_what_trains_and_serves_runs_without_ray_and_loads_no_compiler_no_plots_and_no_statistics():
    """Each costs seconds and 100 MB of every trial, scoring task and replica: they are imported where they are used.

    The learners and models, which load some of them, and the loop run where Ray is not installed.
    """
    heavy = ("torch._dynamo", "torchvision", "monai", "timm", "transformers", "matplotlib", "scipy", "pandas")
    tasks = [f"retable.tasks.{name}.task" for name in ("audio", "rl", "style", "weather")]
    ours = [path.relative_to(ROOT) for path in plain_modules() if path.is_relative_to(ROOT / "tasks")]
    names = ["retable." + ".".join(path.with_suffix("").parts) for path in ours]
    names += [f"retable.tasks.{path.parent.name}.{path.stem}" for path in TOYS if path.stem in PLAIN]
    parts = "train.loop train.worker store.run spec.table plan.plan report.results report.write config"
    names += [f"retable.platform.{name}" for name in parts.split()]
    code = f"""
import importlib, sys
asked = []
class NoRay:
    def find_spec(self, name, *_):
        if name == "ray":
            asked.append(name)
            raise ModuleNotFoundError("No module named 'ray'", name=name)
sys.meta_path.insert(0, NoRay())
for name in {tasks}:
    importlib.import_module(name)
print(*asked, *(name for name in {heavy} if name in sys.modules))
for name in {names}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_no_folder_of_ours_hides_a_module_of_pythons():
    for folder in FOLDERS:
        assert not (ROOT / folder / "__init__.py").exists()
        names = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not names & sys.stdlib_module_names
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there & sys.stdlib_module_names == {"platform"}


def test_pythons_own_platform_works_from_the_root_of_the_repository():
    code = (
        "import platform, sys; assert platform.system() and 'lib' in platform.__file__; import retable.platform.config"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ones_own_tasks_stay_when_import_caches_are_dropped():
    from retable.platform.spec.task import names

    assert "line" in names()
    importlib.invalidate_caches()
    assert "line" in names()


def test_importing_retable_loads_neither_torch_nor_ray():
    code = "import retable, sys; assert not {'torch', 'ray', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
