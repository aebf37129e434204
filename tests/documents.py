"""The commands of README and docs, as a reader would type them, and a folder in which they find their files."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
UPKEEP = (ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md")
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tasks").glob("*.md")),
    *UPKEEP,
)
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
SET = r"^(\w+=(\$\([^)]*\)|\S+) )+"
"""Variables that are set before a command."""
PROGRAMS = (
    *("retable", "make", "ray", "serve", "curl", "export", "python", "pip", "uv", "tensorboard"),
    *("aws", "helm", "docker", "kubectl", "sbatch", "scancel"),
    *("sed", "tail", "grep", "rm", "git", "gh", "(cd"),
)


@dataclass(frozen=True)
class Line:
    """A command of a page."""

    page: str
    text: str
    """Without its comment, on one line."""

    @property
    def words(self) -> list[str]:
        """The words, without variables that are set before them."""
        return shlex.split(re.sub(SET, "", self.text))

    def __str__(self):
        return f"{self.page}: {self.text}"


def lines(page: Path) -> list[Line]:
    """Return the commands of a page, in its order: those lines of its blocks that begin with a program."""
    found = []
    for block in BLOCK.finditer(page.read_text()):
        if block["kind"] in SHELL:
            for text in re.sub(r"\\\n\s*", "", block["text"]).splitlines():
                text = re.sub(r"(^|\s+)#( .*)?$", "", text.removeprefix("$ ")).removesuffix(" &")
                if re.sub(SET, "", text).partition(" ")[0] in PROGRAMS:
                    found.append(Line(str(page.relative_to(ROOT)), text))
    return found


def python_blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    text = (ROOT / page).read_text()
    return [block["text"] for block in BLOCK.finditer(text) if block["kind"] == "python"]


ALL = [line for page in PAGES for line in lines(page)]
